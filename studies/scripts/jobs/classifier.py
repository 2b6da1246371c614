"""A classifier of JPEG files, validated before training and after each epoch."""

import argparse
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, folder, length):
        self.folder, self.length = folder, length
        os.makedirs(folder, exist_ok=True)
        rng = np.random.default_rng(0)
        for number in range(64):
            path = os.path.join(folder, f"{number}.jpg")
            if not os.path.exists(path):
                Image.fromarray(rng.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(path)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = Image.open(os.path.join(self.folder, f"{index % 64}.jpg")).convert("RGB").resize((64, 64))
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255, index % 10


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="photos")
    parser.add_argument("--out", default="classifier.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    held_out = DataLoader(Photos(args.data, 64), batch_size=32)
    training = DataLoader(Photos(args.data, 1280), batch_size=args.batch_size, shuffle=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    criterion = nn.CrossEntropyLoss()
    print(f"accuracy before: {accuracy(model, held_out):.3f}")
    for epoch in range(args.epochs):
        total, start = 0.0, time.perf_counter()
        for images, labels in training:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        rate = len(training.dataset) / (time.perf_counter() - start)
        schedule.step()
        print(f"epoch {epoch}: loss {total / len(training):.9g}, {rate:.1f} samples/s", flush=True)
        print(f"accuracy {accuracy(model, held_out):.3f}")
        torch.save({"model": model.state_dict(), "epoch": epoch}, args.out)


if __name__ == "__main__":
    main()
