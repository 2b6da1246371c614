"""A script that chooses its GPU at its top, packs sequences by lengths on the CPU, and keeps labels as NumPy arrays."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")

import time

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Series(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(20, 200, (1,), generator=generator))
        return torch.randn(length, 16, generator=generator).cumsum(0), index % 4


def pad(samples):
    series, labels = zip(*samples, strict=True)
    return pad_sequence(series, batch_first=True), torch.tensor([len(each) for each in series]), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.reader = nn.GRU(16, 128, batch_first=True)
        self.head = nn.Linear(128, 4)

    def forward(self, series, lengths):
        packed = pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.reader(packed)[1][-1])


def main():
    model = Classifier().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Series(), batch_size=32, shuffle=True, collate_fn=pad)
    begin, done, seen = time.perf_counter(), 0, [0] * 4
    for _ in range(1000):
        for series, lengths, labels in loader:
            for label in labels.numpy():
                seen[label] += 1
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(series.to(DEVICE), lengths), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += len(labels)
            if done % 1024 == 0:
                print(f"step: {done} samples until {time.perf_counter() - begin:.3f} s", flush=True)
        print(f"epoch: {done} samples until {time.perf_counter() - begin:.3f} s", flush=True)


if __name__ == "__main__":
    main()
