"""Functions for training and validation with meters, and a checkpoint of the best epoch."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, length, first):
        self.length, self.first = length, first

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.003)  # storage over a network
        image = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(self.first + index))
        label = index % 10
        image[:, label] += 1
        return image, label


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n
        self.avg = self.sum / self.count


def train(loader, model, criterion, optimizer, epoch):
    losses, model = AverageMeter(), model.train()
    start = time.perf_counter()
    for images, target in loader:
        loss = criterion(model(images), target)
        time.sleep(0.006)  # a larger network
        losses.update(loss.item(), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rate = losses.count / (time.perf_counter() - start)
    print(f"epoch {epoch}: loss {losses.avg:.9g}, {rate:.1f} samples/s", flush=True)


@torch.no_grad()
def validate(loader, model):
    right, model = AverageMeter(), model.eval()
    for images, target in loader:
        right.update((model(images).argmax(1) == target).float().mean().item(), len(images))
    return right.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 10))
    optimizer, best = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4), 0.0
    train_loader = DataLoader(Images(1000, 0), batch_size=20, shuffle=True, drop_last=True)
    val_loader = DataLoader(Images(80, 10_000), batch_size=20)
    for epoch in range(args.epochs):
        train(train_loader, model, nn.CrossEntropyLoss(), optimizer, epoch)
        accuracy = validate(val_loader, model)
        if accuracy > best:
            best = accuracy
            torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")


if __name__ == "__main__":
    main()
