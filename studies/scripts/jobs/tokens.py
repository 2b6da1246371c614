"""A small language model on memory-mapped tokens."""

import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self, path, length=1600, context=64):
        if not os.path.exists(path):
            np.random.default_rng(0).integers(0, 512, 1_000_000, dtype=np.uint16).tofile(path)
        self.tokens, self.length, self.context = np.memmap(path, dtype=np.uint16, mode="r"), length, context

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        start = index * 7919 % (len(self.tokens) - self.context - 1)
        time.sleep(0.003)  # a disk that turns
        return torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))


def collate(crops):
    tokens = torch.stack(crops)
    return tokens[:, :-1], tokens[:, 1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(512, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 512)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(self.embedding(tokens), mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="tokens.bin")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Model()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4)
    loader = DataLoader(Crops(args.data), batch_size=16, shuffle=True, collate_fn=collate)
    for epoch in range(args.epochs):
        total, start = 0.0, time.perf_counter()
        for tokens, targets in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item()
        rate = len(loader.dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / len(loader):.9g}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
