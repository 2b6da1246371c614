"""A convolutional GAN: one loader of real images, noise made in the loop, an optimizer for each network."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NOISE = 16


class Faces(Dataset):
    def __init__(self, length=1280):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)  # a slow disk
        return torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(index)).tanh()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.ConvTranspose2d(NOISE, 8, 8), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1)]
        self.main = nn.Sequential(*layers, nn.Tanh())

    def forward(self, noise):
        time.sleep(0.003)  # a larger network
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 8), nn.Flatten(0))

    def forward(self, images):
        time.sleep(0.001)
        return self.main(images)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dataloader = DataLoader(Faces(), batch_size=16, shuffle=True)
    net_g, net_d, criterion = Generator(), Discriminator(), nn.BCEWithLogitsLoss()
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for epoch in range(args.epochs):
        total, start = 0.0, time.perf_counter()
        for real in dataloader:
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
            net_d.zero_grad()
            fake = net_g(torch.randn(len(real), NOISE, 1, 1))
            loss_d = criterion(net_d(real), ones) + criterion(net_d(fake.detach()), zeros)
            loss_d.backward()
            optimizer_d.step()
            net_g.zero_grad()
            loss_g = criterion(net_d(fake), ones)
            loss_g.backward()
            optimizer_g.step()
            total += loss_d.item() + loss_g.item()
        rate = len(dataloader.dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / len(dataloader):.9g}, {rate:.1f} samples/s", flush=True)
        torch.save(net_g.state_dict(), "generator.pt")


if __name__ == "__main__":
    main()
