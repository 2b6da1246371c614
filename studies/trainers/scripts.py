"""Three training scripts, each with another trainer: tune from there, train with the answer, or measure it once more.

    python studies/trainers/scripts.py NAME tune|train|beside FOLDER

Prints one JSON object as its last line. The data is that of the study ``promise``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import autotune
from autotune import Config

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "promise"))
import workloads

STEPS = 300
"""Steps of each training."""
WINDOW = 250
"""The last of them, over which Lightning's own monitor takes the rate."""
BATCH = 32
BUDGET, BESIDE = "2m", 25
"""Of a search, and of a measurement beside training (seconds)."""
HEADS, LAYERS, WIDTH = 2, 2, 64
"""Of the language model that Transformers trains."""
QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def fixed(config: Config) -> dict[str, Any]:
    """Return the arguments with which ``tune`` does nothing but measure one configuration."""
    knobs = {name: getattr(config, name) for name in ("batch_size", "num_workers", "pin_memory", "amp")}
    if config.num_workers:
        knobs |= {name: getattr(config, name) for name in ("prefetch_factor", "persistent_workers")}
    return knobs | {"threads": config.intra_op_threads, "baseline": config, "budget": BESIDE}


def told(result: autotune.Result) -> dict[str, Any]:
    """Return what a search says."""
    measured = result.config.measured or {}
    return {"rate": result.samples_per_second, "ci95": measured["ci95"], "verdict": result.verdict}


class Denoiser:
    """Lightning on photographs."""

    def search(self, **options: Any) -> autotune.Result:
        module, loader = self._made({"batch_size": BATCH})
        trainer = self._lightning().Trainer(accelerator="cpu", max_steps=STEPS, logger=False, **QUIET)
        return autotune.lightning.tune(trainer, module, loader, **options)

    def train(self, config: Config) -> float:
        from lightning.pytorch.callbacks import ThroughputMonitor
        from lightning.pytorch.loggers import Logger

        class Rates(Logger):
            name = version = "rates"
            last = 0.0

            def log_hyperparams(self, *given: Any, **more: Any) -> None: ...

            def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
                self.last = metrics.get("train/device/samples_per_sec", self.last)

        exported = autotune.export(config, "lightning").values
        module, loader = self._made(exported["DataLoader"])
        monitor, rates = ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=WINDOW), Rates()
        given: dict[str, Any] = {"max_steps": STEPS, "callbacks": [monitor], "logger": rates, "log_every_n_steps": 10}
        trainer = self._lightning().Trainer(**given, **QUIET, **exported["Trainer"])
        trainer.fit(module, loader)
        return rates.last

    def _lightning(self) -> Any:
        import lightning

        return lightning

    def _made(self, options: dict[str, Any]) -> Any:
        workload = workloads.photographs()

        class Module(self._lightning().LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = workload.model

            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                loss = workloads.remove_noise(self.net, batch)
                self.log("loss", loss)
                return loss

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.parameters())

        return Module(), DataLoader(workload.dataset, shuffle=True, **options)


class LanguageModel:
    """Transformers' Trainer on source text, passages of different lengths."""

    def search(self, **options: Any) -> autotune.Result:
        return autotune.transformers.search(self._trainer({"per_device_train_batch_size": BATCH}), **options)

    def train(self, config: Config) -> float:
        from transformers import TrainingArguments

        given = TrainingArguments(**self._arguments())
        trainer = self._trainer({}, autotune.transformers.updated(given, config))
        return float(trainer.train().metrics["train_samples_per_second"])

    def _arguments(self) -> dict[str, Any]:
        quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 100}
        return {"output_dir": "output", "use_cpu": True, "max_steps": STEPS, **quiet}

    def _trainer(self, options: dict[str, Any], arguments: Any = None) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        sizes = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "n_positions": workloads.LONGEST_PASSAGE}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=workloads.VOCABULARY + 2, **sizes))
        arguments = arguments or TrainingArguments(**self._arguments(), **options)
        return Trainer(model=model, args=arguments, train_dataset=Sentences(), data_collator=padded)


class Sentences(workloads.Passages):
    """The passages as Transformers' datasets give them."""

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": super().__getitem__(index)}


def padded(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    words = [sample["input_ids"] for sample in samples]
    ids = nn.utils.rnn.pad_sequence(words, batch_first=True, padding_value=workloads.PADDING)
    mask = (ids != workloads.PADDING).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class DigitNet:
    """A script with Accelerate on digits."""

    def search(self, **options: Any) -> autotune.Result:
        from accelerate import Accelerator

        workload = workloads.digits()
        optimizer = torch.optim.AdamW(workload.model.parameters())
        loader = DataLoader(workload.dataset, batch_size=BATCH, shuffle=True)
        given = (Accelerator(cpu=True), workload.model, optimizer, loader)
        return autotune.accelerate.tune(*given, training_step=workloads.classify, **options)

    def train(self, config: Config) -> float:
        from accelerate import Accelerator

        workload, exported = workloads.digits(), autotune.export(config, "accelerate").values
        accelerator = Accelerator(cpu=True, **exported["Accelerator"])
        optimizer = torch.optim.AdamW(workload.model.parameters())
        loader = DataLoader(workload.dataset, shuffle=True, **exported["DataLoader"])
        model, optimizer, loader = accelerator.prepare(workload.model, optimizer, loader)
        begin, steps, samples = time.perf_counter(), 0, 0
        while steps < STEPS:
            for batch in loader:
                with accelerator.accumulate(model), accelerator.autocast():
                    loss = workloads.classify(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                steps, samples = steps + 1, samples + len(batch[0])
        return samples / (time.perf_counter() - begin)


SCRIPTS = {"lightning": Denoiser, "transformers": LanguageModel, "accelerate": DigitNet}


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune or train with one of three trainers.")
    parser.add_argument("name", choices=SCRIPTS)
    parser.add_argument("act", choices=["tune", "train", "beside"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    script: Any = SCRIPTS[options.name]()
    file = options.folder / "autotune.yaml"
    if options.act == "tune":
        result = script.search(budget=BUDGET)
        result.config.save(file)
        found = told(result)
    else:
        config = autotune.load_config(file)
        if options.act == "train":
            begin = time.perf_counter()
            config.apply_threads()
            found = {"rate": script.train(config), "seconds": time.perf_counter() - begin}
        else:
            found = told(script.search(**fixed(config)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
