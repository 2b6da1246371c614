"""A siamese network on pairs, with a contrastive loss."""

import argparse
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """Every other pair is of one class."""

    def __init__(self, length, classes=20):
        self.length, self.classes = length, classes

    def __len__(self):
        return self.length

    def image(self, label, number):
        time.sleep(0.0015)  # a request to a server
        noise = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(number))
        return noise + torch.linspace(-label, label, 16) / 10

    def __getitem__(self, index):
        chance = random.Random(index)
        label = chance.randrange(self.classes)
        other = label if index % 2 else (label + chance.randrange(1, self.classes)) % self.classes
        return self.image(label, 2 * index), self.image(other, 2 * index + 1), float(label == other)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, one, two, same):
        distance = F.pairwise_distance(one, two)
        return (same * distance.square() + (1 - same) * (self.margin - distance).clamp(min=0).square()).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 16))
    optimizer, criterion = torch.optim.Adam(net.parameters(), lr=5e-4), ContrastiveLoss()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    pairs_loader = DataLoader(Pairs(1120), shuffle=True, batch_size=16)
    for epoch in range(args.epochs):
        losses, start = [], time.perf_counter()
        for one, two, same in pairs_loader:
            optimizer.zero_grad()
            loss = criterion(net(one), net(two), same.float())
            time.sleep(0.005)  # a larger network
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        scheduler.step()
        rate = len(pairs_loader.dataset) / seconds
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.9g}, {rate:.1f} samples/s", flush=True)
    torch.save(net.state_dict(), "siamese.pt")


if __name__ == "__main__":
    main()
