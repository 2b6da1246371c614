"""Train on the digits in several ranks with a config file, as a training script does.

    torchrun --standalone --nproc-per-node 2 studies/ranks/train.py FILE --seconds 15          # prints the rate
    torchrun --standalone --nproc-per-node 2 studies/ranks/train.py FILE --losses 40 --plain   # prints losses

With ``--losses`` it trains for so many steps of the optimizer without augmentation, so that the same samples are the
same numbers, and ``--batch-size`` and ``--accumulate`` replace the file's: another number of ranks can then take the
same samples in a step.
"""

import argparse
import json
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import autotune

parser = argparse.ArgumentParser()
parser.add_argument("file", type=Path)
parser.add_argument("--seconds", type=float, default=15.0)
parser.add_argument("--warm-up", type=float, default=5.0)
parser.add_argument("--losses", type=int, default=0)
parser.add_argument("--batch-size", type=int)
parser.add_argument("--accumulate", type=int)
options = parser.parse_args()
config = autotune.load_config(options.file).for_rank()
if options.losses:
    sizes = {"batch_size": options.batch_size, "accumulation_steps": options.accumulate}
    config = replace(config, amp="off", **{name: size for name, size in sizes.items() if size})
config.apply_threads()  # before torch is imported

import torch  # noqa: E402
from torch import distributed  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from workload import DigitFiles, build  # noqa: E402

distributed.init_process_group("gloo")
torch.manual_seed(0)
model, dataset = build()
if options.losses:
    dataset = DigitFiles([Path(path) for path in dataset._paths], augment=False)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # statistics of a batch are those of one rank's part of it
    model.features.train = lambda mode=True: model.features
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config.apply_options(model, optimizer)
replicas = DistributedDataParallel(model)
accumulator = config.accumulator(optimizer, "cpu")
sampler = config.distributed_sampler(dataset)
loader = config.dataloader(dataset, sampler=sampler)


def batches():
    """Yield batches, epoch after epoch."""
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from loader


def train(batch) -> torch.Tensor:
    """Train on a batch; return its loss."""
    with accumulator.accumulate(replicas):
        with config.autocast("cpu"):
            loss = cross_entropy(replicas(batch[0]), batch[1])
        accumulator.backward(loss, len(batch[0]))
    accumulator.step()
    return loss.detach()


def agreed(flag: bool) -> bool:
    """Return rank 0's flag."""
    word = torch.tensor([float(flag)])
    distributed.broadcast(word, 0)
    return bool(word)


def rate(stream) -> float:
    """Return the samples per second of all ranks, of whole epochs."""
    begin, per_epoch = time.perf_counter(), len(loader)
    while agreed(time.perf_counter() - begin < options.warm_up):
        for _ in range(per_epoch):
            train(next(stream))
    samples, begin = 0, time.perf_counter()
    while agreed(time.perf_counter() - begin < options.seconds):
        for _ in range(per_epoch):
            batch = next(stream)
            samples += len(batch[0])
            train(batch)
    distributed.barrier()
    seconds, whole = time.perf_counter() - begin, torch.tensor([float(samples)])
    distributed.all_reduce(whole)
    return float(whole) / seconds


def losses(stream) -> list[float]:
    """Return the mean loss of every step of the optimizer, over the samples of all ranks."""
    found = []
    for _ in range(options.losses):
        total = torch.zeros(2)
        for _ in range(config.accumulation_steps):
            batch = next(stream)
            total += torch.tensor([float(train(batch)) * len(batch[0]), len(batch[0])])
        distributed.all_reduce(total)
        found.append(float(total[0] / total[1]))
    return found


answer = losses(batches()) if options.losses else rate(batches())
if distributed.get_rank() == 0:
    print(json.dumps(answer))
distributed.destroy_process_group()
