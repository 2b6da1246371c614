"""A loop with everything prepared by Accelerate, which accumulates gradients and saves its state."""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.002)  # a slow disk
        patch = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(index))
        return {"patch": patch, "target": patch.mean().unsqueeze(0)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="state")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Patches(1920), batch_size=24, shuffle=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(args.epochs):
        total, start = 0.0, time.perf_counter()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch["patch"]), batch["target"])
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            total += loss.item()
        rate = len(loader.dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / len(loader):.9g}, {rate:.1f} samples/s", flush=True)
        accelerator.save_state(args.out)


if __name__ == "__main__":
    main()
