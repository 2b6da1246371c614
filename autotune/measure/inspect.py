"""What there is to know about a workload before anything is tuned."""

from __future__ import annotations

import platform
from collections.abc import Sized
from typing import Any

import psutil
import torch
from torch.utils.data import IterableDataset, default_collate

from autotune.errors import UserCodeError
from autotune.host import inspect_host, memory_available
from autotune.measure.device import Device, uuid_of
from autotune.measure.fingerprint import fingerprint
from autotune.measure.step import loss_reduction, tensor_bytes
from autotune.records import WorkloadFacts
from autotune.workload import Workload

__all__ = ["inspect"]

BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)


def inspect(workload: Workload, device: Device, ranks: int = 1) -> WorkloadFacts:
    """Look at model, dataset and device; builds one sample. Each of several ``ranks`` has its share of free memory.

    Raises ``UserCodeError`` when the dataset gives no sample; what the sample's own code raises passes through.
    """
    dataset = workload.dataset
    length = len(dataset) if isinstance(dataset, Sized) else None
    sample = _first_sample(workload)
    devices: list[int] | None = None
    if isinstance(workload.model, torch.nn.DataParallel):
        devices = list(workload.model.device_ids)
    collate = workload.collate_fn or default_collate
    return WorkloadFacts(
        dataset_length=length,
        iterable=isinstance(dataset, IterableDataset),
        sets_epoch=hasattr(dataset, "set_epoch"),
        parameters=sum(parameter.numel() for parameter in workload.model.parameters()),
        loss_reduction=loss_reduction(workload),
        has_batch_norm=any(isinstance(module, BATCH_NORMS) for module in workload.model.modules()),
        device=str(device.torch_device),
        device_name=device.name,
        amp_modes=device.amp_modes,
        intra_op_threads=torch.get_num_threads(),
        inter_op_threads=torch.get_num_interop_threads(),
        model_name=type(workload.model).__qualname__,
        dataset_name=type(dataset).__qualname__,
        fingerprint=fingerprint(workload, length),
        sample_bytes=tensor_bytes(collate([sample])),
        versions=_versions(device),
        device_uuid=device.uuid,
        data_parallel_devices=len(devices) if devices is not None else None,
        other_devices=tuple(filter(None, (uuid_of(torch.device("cuda", number)) for number in (devices or ())[1:]))),
        obtainable_host_bytes=memory_available() // ranks + psutil.Process().memory_info().rss,
    )


def _first_sample(workload: Workload) -> Any:
    dataset: Any = workload.dataset
    if not isinstance(dataset, IterableDataset):
        return dataset[0] if workload.sampler is None else dataset[next(iter(workload.sampler))]
    for sample in dataset:
        return sample
    raise UserCodeError("the dataset is empty: it yields no sample")


def _versions(device: Device) -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    gpus = inspect_host().gpus
    if device.is_asynchronous and gpus:
        versions["driver"] = gpus[0].driver
    return versions
