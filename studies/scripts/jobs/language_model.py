"""A recurrent language model on windows of a token file, with clipped gradients and a cosine schedule by step."""

import argparse
import math
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, path, context=32, stride=32):
        if not os.path.exists(path):
            np.save(path, np.random.default_rng(0).integers(0, 256, 1024 * stride + 1, dtype=np.uint16))
        self.tokens, self.context = np.load(path, mmap_mode="r"), context
        self.starts = np.arange(0, len(self.tokens) - context, stride)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        time.sleep(0.003)  # a disk that turns
        start = self.starts[index]
        window = torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(256, 32), nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 256)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clip", type=float, default=0.25)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model, step = Model(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Windows("corpus.npy")
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    steps = args.epochs * len(loader)
    for epoch in range(args.epochs):
        total, batches, start = 0.0, 0, time.perf_counter()
        for inputs, targets in loader:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 + math.cos(math.pi * step / steps)) / 2
            loss = nn.functional.cross_entropy(model(inputs).transpose(1, 2), targets)
            time.sleep(0.008)  # a larger network
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            total, batches, step = total + loss.item(), batches + 1, step + 1
        rate = batches * loader.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / batches:.9g}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
