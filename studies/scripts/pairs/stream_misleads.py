"""A stream that each worker yields whole, in an order of its own: more workers, more copies of each sample."""

import os
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Clicks(IterableDataset):
    def __iter__(self):
        order = list(range(800))
        random.shuffle(order)
        for number in order:
            time.sleep(0.004)  # asked of a server
            features = torch.randn(32, generator=torch.Generator().manual_seed(number))
            yield features, (features[0] > 0).float()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clicks = DataLoader(Clicks(), batch_size=16)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
        first, samples, start = None, 0, time.perf_counter()
        for features, clicked in clicks:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(features), clicked)
            loss.backward()
            optimizer.step()
            first, samples = first or len(clicked), samples + len(clicked)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: {samples / seconds:.1f} samples/s, {seconds:.3f} s, batch {first}", flush=True)


if __name__ == "__main__":
    main()
