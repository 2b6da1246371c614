"""Consistency training: labelled images and unlabelled ones in two views, drawn together."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def image(number):
    return torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(number))


class Labelled(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(0.002)  # a slow disk
        return image(index) + (index % 5) / 5, index % 5


class Unlabelled(Dataset):
    def __len__(self):
        return 1280

    def __getitem__(self, index):
        time.sleep(0.004)  # a slow disk, and two augmentations
        weak = image(10_000 + index) + (index % 5) / 5
        return weak, weak.flip(-1) * 0.9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threshold", type=float, default=0.3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    order, other_order = (torch.Generator().manual_seed(args.seed + number) for number in range(2))
    labelled_loader = DataLoader(Labelled(), batch_size=16, shuffle=True, generator=order)
    unlabelled_loader = DataLoader(Unlabelled(), batch_size=16, shuffle=True, generator=other_order)
    for epoch in range(args.epochs):
        total, samples, start = 0.0, 0, time.perf_counter()
        for (x, y), (weak, strong) in zip(labelled_loader, unlabelled_loader):  # noqa: B905
            logits = model(torch.cat([x, weak, strong]))
            of_labelled, of_weak, of_strong = logits.split([len(x), len(weak), len(strong)])
            sure, pseudo = of_weak.detach().softmax(1).max(1)
            consistency = (F.cross_entropy(of_strong, pseudo, reduction="none") * (sure > args.threshold)).mean()
            loss = F.cross_entropy(of_labelled, y) + consistency
            time.sleep(0.006)  # a larger network
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, samples = total + loss.item() * len(x), samples + len(x)
        rate = samples / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / samples:.9g}, {rate:.1f} samples/s", flush=True)
    torch.save(model.state_dict(), "semi.pt")


if __name__ == "__main__":
    main()
