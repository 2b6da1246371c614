"""Train the jpeg job with settings as numbers, by torch alone, and print the progress.

    python studies/first_answers/neutral.py '{"batch_size": 32, "num_workers": 2}'

The settings are those of ``study.settings_of``: DataLoader arguments, ``threads`` and ``amp``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent / "jobs"))


def train(settings: dict[str, Any], epochs: int) -> None:
    from epochs import DEVICE, Progress
    from jpeg import Photos, network

    threads, amp = settings.pop("threads", None), settings.pop("amp", "off")
    if threads:
        torch.set_num_threads(threads)
    dtype = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[amp]
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=amp == "fp16")
    photos, model = Photos(), network().to(DEVICE)
    loader = DataLoader(photos, shuffle=True, **settings)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    progress = Progress(len(photos))
    for _ in range(epochs):
        for images, labels in loader:
            images, labels = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(DEVICE.type, dtype=dtype, enabled=amp != "off"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            progress.step(len(labels))
        progress.epoch()


if __name__ == "__main__":
    train(json.loads(sys.argv[1]), 1000)
