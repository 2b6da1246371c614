"""Torchvision from the index without CUDA: let its Python part import beside a PyTorch for CPUs.

    python studies/scripts/projects/declare_operators.py

The wheels of torchvision in the index are built for CUDA, and their C++ part does not load beside a PyTorch for CPUs.
``torchvision`` then fails at its first import, for want of ``torchvision::nms``. This adds a plain
``nms`` to the installed package's ``extension.py``. Decoders and other operators stay missing.
Where torchvision imports already, nothing is written.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

DECLARATION = """

if not _has_ops():
    import torch

    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    @torch.library.impl("torchvision::nms", "CPU")
    def _nms(dets, scores, iou_threshold):
        areas = (dets[:, 2:] - dets[:, :2]).prod(1)
        order, kept = scores.argsort(descending=True), []
        while len(order):
            first, order = order[0], order[1:]
            kept.append(first)
            low, high = dets[order, :2].maximum(dets[first, :2]), dets[order, 2:].minimum(dets[first, 2:])
            shared = (high - low).clamp(min=0).prod(1)
            order = order[shared <= iou_threshold * (areas[order] + areas[first] - shared)]
        return torch.stack(kept) if kept else order

    def _assert_has_ops():
        pass
"""


def main() -> None:
    if subprocess.run([sys.executable, "-c", "import torchvision"], check=False, capture_output=True).returncode:
        package = importlib.util.find_spec("torchvision")
        if package is None or package.origin is None:
            sys.exit("torchvision is not installed")
        path = Path(package.origin).with_name("extension.py")
        path.write_text(path.read_text(encoding="utf-8") + DECLARATION, encoding="utf-8")


if __name__ == "__main__":
    main()
