"""A variational autoencoder, with a pass over the test set after each epoch."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Strokes(Dataset):
    def __init__(self, first, length):
        self.first, self.length = first, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)  # a slow disk
        return torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(self.first + index)).round()


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(144, 64)
        self.mean, self.log_variance = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 144))

    def forward(self, x):
        hidden = F.relu(self.encoder(x.flatten(1)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
        return self.decoder(latent), mean, log_variance


def loss_function(x, decoded, mean, log_variance):
    reconstruction = F.binary_cross_entropy_with_logits(decoded, x.flatten(1), reduction="sum")
    return reconstruction - 0.5 * torch.sum(1 + log_variance - mean.square() - log_variance.exp())


def train(model, loader, optimizer, epoch):
    total, start, model = 0.0, time.perf_counter(), model.train()
    for data in loader:
        optimizer.zero_grad()
        loss = loss_function(data, *model(data))
        loss.backward()
        total += loss.item()
        optimizer.step()
        time.sleep(0.005)  # a larger network
    rate = len(loader.dataset) / (time.perf_counter() - start)
    print(f"epoch {epoch}: loss {total / len(loader.dataset):.9g}, {rate:.1f} samples/s", flush=True)


@torch.no_grad()
def test(model, loader):
    total = sum(loss_function(data, *model.eval()(data)).item() for data in loader)
    print(f"Test set loss: {total / len(loader.dataset):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    train_loader = DataLoader(Strokes(0, 1536), batch_size=32, shuffle=True)
    test_loader = DataLoader(Strokes(10_000, 128), batch_size=32)
    for epoch in range(args.epochs):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)


if __name__ == "__main__":
    main()
