"""Accelerate with gradients accumulated over four batches, and the model unwrapped at the end."""

import argparse
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    def __len__(self):
        return 1280

    def __getitem__(self, index):
        time.sleep(0.002)  # storage over a network
        wave = torch.randn(1, 256, generator=torch.Generator().manual_seed(index))
        return wave, (wave.mean() > 0).long()


def get_dataloader(batch_size):
    return DataLoader(Recordings(), shuffle=True, batch_size=batch_size, drop_last=True)


def training_function(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps, cpu=True)
    set_seed(args.seed)
    train_dataloader = get_dataloader(args.batch_size)
    model = nn.Sequential(nn.Conv1d(1, 8, 9, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 62, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    model, optimizer, train_dataloader, scheduler = accelerator.prepare(model, optimizer, train_dataloader, scheduler)
    for epoch in range(args.epochs):
        model.train()
        total, samples, start = 0.0, 0, time.perf_counter()
        for waves, targets in train_dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(waves), targets)
                time.sleep(0.005)  # a larger network
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total, samples = total + loss.item() * len(waves), samples + len(waves)
        rate = samples / (time.perf_counter() - start)
        accelerator.print(f"epoch {epoch}: loss {total / samples:.9g}, {rate:.1f} samples/s", flush=True)
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "recordings.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
