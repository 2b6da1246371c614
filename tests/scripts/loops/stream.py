"""A loop over a stream, a dataset without a length.

Fault: the truth of a DataLoader asks for its length. Truth: 2 samples take 2 * 20 + 40 ms, 25/s.
"""

import itertools
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in itertools.count(first, step):
            time.sleep(0.02)
            yield torch.full((8,), number % 7 / 7), torch.randn(1)


def collate(samples):
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.stack([y for _, y in samples])}


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Stream(), batch_size=2, collate_fn=collate):
    time.sleep(0.04)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
