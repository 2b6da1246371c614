"""Functions for training and testing, as introductions to PyTorch show them, on scikit-learn's digits."""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, train):
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 1440) if train else slice(1440, None)
        self.images, self.labels = images[part], labels[part]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        time.sleep(0.002)  # a slow disk
        return torch.tensor(self.images[index], dtype=torch.float32).view(1, 8, 8) / 16, int(self.labels[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3)
        self.fc1 = nn.Linear(32 * 36, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = torch.flatten(F.relu(self.conv(x)), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(args, model, loader, optimizer, epoch):
    model.train()
    total, start = 0.0, time.perf_counter()
    for batch, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if batch % args.log_interval == 0:
            print(f"Train epoch {epoch} [{batch * len(data)}/{len(loader.dataset)}] loss: {loss.item():.6f}")
    rate = len(loader.dataset) / (time.perf_counter() - start)
    print(f"epoch {epoch}: loss {total / len(loader):.9g}, {rate:.1f} samples/s", flush=True)


def test(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(data).argmax(1) == target).sum().item() for data, target in loader)
    print(f"Test accuracy: {right}/{len(loader.dataset)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--test-batch-size", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=30)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Digits(True), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(Digits(False), batch_size=args.test_batch_size)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        train(args, model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
    if args.save_model:
        torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
