"""Two ranks of DistributedDataParallel, in several kinds: ``job.py KIND``.

Truth: a step takes 8 samples of 2 ms, 20 ms and the synchronising; 222 samples/s for each rank.
"""

import os
import signal
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

noted = os.environ.get("NOTED")
"""Folder for the loss of each step, and a digest of the parameters after it."""
kind, counted = sys.argv[1], int(os.environ.get("COUNTED", "0"))
"""Kind of the job, and the steps after the tenth whose rate it prints, before it ends."""


class Samples(Dataset):
    def __init__(self, length, seconds):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(8), torch.randn(1)


if kind == "at an address":
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=int(os.environ["RANK"]), world_size=2)
elif kind != "alone":
    dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = nn.Linear(8, 1) if kind == "alone" else DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = Samples(4000 if kind != "shards" else 400 + 8 * rank, 0.004 if kind == "slow" and rank == 1 else 0.002)
sampler = None if kind in ("shards", "alone") else DistributedSampler(data)
loader = DataLoader(
    data, batch_size=8, sampler=sampler, shuffle=sampler is None, num_workers=2 if kind == "workers" else 0
)
held_out = DataLoader(Samples(50, 0.002), batch_size=50)
step, apart = 0, 0.0
"""Steps so far, and seconds since the tenth that were no training."""


def say(*words):
    os.write(1, (" ".join(map(repr, (rank, *words))) + "\n").encode())


def validate():
    if rank == 0:
        with torch.no_grad():
            losses = [nn.functional.mse_loss(model.module(x), y).item() for x, y in held_out]
        torch.save(model.state_dict(), f"best-{len(losses)}.pt")
    dist.barrier()


def fail():
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hung":
        time.sleep(1000)
    if kind == "raising":
        raise RuntimeError("this rank cannot go on")


for epoch in range(1000):
    if isinstance(sampler, DistributedSampler) and kind != "workers":
        sampler.set_epoch(epoch)
    for x, y in loader:
        if step == 10:
            begin = time.perf_counter()
        time.sleep(0.02)
        optimizer.zero_grad()
        is_last = kind != "no_sync" or step % 4 == 3
        with nullcontext() if is_last or kind == "alone" else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
        if is_last:
            optimizer.step()
        if noted:
            with open(f"{noted}/{rank}", "a") as file:
                file.write(f"{loss.item()!r} {hash(tuple(model.module.weight.flatten().tolist()))}\n")
        step += 1
        if kind == "validates" and step % 10 == 0:
            before = time.perf_counter()
            validate()
            apart += time.perf_counter() - before if step > 10 else 0.0
        if kind in ("killed", "hung", "raising") and rank == 1 and step == 30:
            fail()
        if counted and step == 10 + counted:
            say("rate", 8 * counted / (time.perf_counter() - begin - apart), loader.num_workers)
            sys.exit()
        if kind == "ends" and step == 60:
            sys.exit()
