"""Two ranks behind a trainer, in several kinds: ``trainers.py KIND [FAULT]``.

Truth: a step takes 8 samples of 2 ms, 20 ms and the synchronising; 222 samples/s for each rank.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

kind, fault = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
counted = int(os.environ.get("COUNTED", "0"))
"""Steps after the tenth whose rate is printed; then the job ends."""


class Samples(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.002)
        return {"x": torch.randn(8), "labels": torch.randn(1)}


class Stream(IterableDataset):
    def __iter__(self):
        yield from map(Samples().__getitem__, range(4000))


class Model(nn.Module):
    """Sleeps in its forward, counts its steps, and prints their rate."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.steps = 0

    def forward(self, x, labels):
        time.sleep(0.02)
        now = time.perf_counter()
        if self.steps == 10:
            self.begin = now
        if counted and self.steps == 10 + counted:
            line = f"{os.environ['RANK']} 'rate' {8 * counted / (now - self.begin)} {torch.get_num_threads()}\n"
            os.write(1, line.encode())
            os._exit(0)
        if fault and os.environ["RANK"] == "1" and self.steps == 30:
            fail()
        self.steps += 1
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


def fail():
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("this rank cannot go on")


def plain(model, loader, optimizer, backward):
    for _ in range(1000):
        for batch in loader:
            optimizer.zero_grad()
            backward(model(**batch)["loss"])
            optimizer.step()


def with_accelerate(data, **options):
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    model = Model()
    loader = DataLoader(data, batch_size=8, shuffle=not isinstance(data, IterableDataset))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    plain(model, loader, optimizer, accelerator.backward)


def with_transformers():
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, max_steps=4000, report_to=[], save_strategy="no", use_cpu=True
    )
    Trainer(model=Model(), args=arguments, train_dataset=Samples()).train()


def with_lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, batch_idx):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=100, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Samples(), batch_size=8, shuffle=True))


def with_fsdp2():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = Model()
    fully_shard(model)
    data = Samples()
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    plain(model, loader, torch.optim.SGD(model.parameters(), lr=0.01), torch.Tensor.backward)


if __name__ == "__main__":
    if kind == "accelerate":
        with_accelerate(Samples())
    elif kind == "dispatcher":
        with_accelerate(Stream())
    elif kind == "dispatches nothing":
        with_accelerate(Stream(), dispatch_batches=False)
    elif kind == "transformers":
        with_transformers()
    elif kind == "lightning":
        with_lightning()
    else:
        with_fsdp2()
