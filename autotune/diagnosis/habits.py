"""Findings beside the limit: habits of the code and of the machine that cost time or memory.

Pure: no clock, no torch, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.diagnosis.findings import Cause, Evidence, Finding
from autotune.probes import Anatomy
from autotune.records import ONE_THREAD, Measurement

MANY_TENSORS = 16
"""Tensors in a batch from which their number is reported; each costs some 0.1 ms."""
LARGE_DATASET = 100 * 2**20
"""Bytes of a dataset from which its copies in the workers are reported."""
MANY_OBJECTS = 100_000
"""Python objects in a dataset whose counts, once touched, make forked workers copy their pages."""
LEAST_GROWTH = 0.02
"""Share of the machine's memory from which the copies that workers make in an epoch are told."""
SLOW_START = 1.0
"""Seconds until the first batch, from which spawned workers are reported."""
FEW_BYTES = 4096
"""Bytes of a sample below which fetching samples one at a time costs more than copying them."""
FELT_SHARE = 0.1
"""Time of fetching a batch, as a share of a step, from which how it is fetched matters."""
UNEVEN = 0.1
"""Share of the slowest rank's part of a step by which another rank must be faster for a report."""
FOREIGN_BYTES = 2**29
"""Bytes that others may hold on an accelerator before a report: a display takes less."""
KEEP_IN_ARRAYS = "keep large data in a few arrays or tensors (or memory-mapped) instead of lists: workers share those"


def habits(evidence: Evidence) -> Iterator[Finding]:
    """Yield the habits that cost time or memory, the machine's first."""
    yield from _of_machine(evidence)
    yield from _of_ranks(evidence.measurement)
    yield from _of_memory(evidence)
    if evidence.anatomy is not None:
        yield from _of_step(evidence.anatomy)
        yield from _of_dataset(evidence, evidence.anatomy)


def _of_ranks(measured: Measurement) -> Iterator[Finding]:
    slowest = measured.slowest_rank
    if slowest is None or (measured.rank_spread or 0.0) < UNEVEN:
        return
    fastest = min(measured.ranks, key=lambda rank: rank.own_seconds)
    waits = slowest.data_wait_seconds - fastest.data_wait_seconds > (slowest.own_seconds - fastest.own_seconds) / 2
    yield _finding(
        Cause.SLOW_RANK,
        f"rank {slowest.rank} takes longer than the others, which wait for it in every step",
        (f"{1000 * slowest.own_seconds:.3g} ms a step, rank {fastest.rank} {1000 * fastest.own_seconds:.3g} ms",),
        "check its data loader and its share of the data"
        if waits
        else "check its device, and what only this rank does",
    )


def _of_machine(evidence: Evidence) -> Iterator[Finding]:
    facts, host, conditions = evidence.facts, evidence.host, evidence.measurement.conditions
    if facts.device == "cpu" and host.gpus and evidence.anatomy is not None and not evidence.anatomy.has_cuda_build:
        yield _finding(
            Cause.CPU_BUILD,
            "the driver shows a GPU, but this build of torch is for CPUs only",
            (host.gpus[0].name, f"torch {facts.versions['torch']}"),
            "install a torch build for this GPU (pytorch.org/get-started)",
        )
    if (conditions.gpu_foreign_bytes or 0) >= FOREIGN_BYTES:
        yield _finding(
            Cause.SHARED_GPU,
            "another process is on the same accelerator",
            (f"it holds {(conditions.gpu_foreign_bytes or 0) / 2**30:.1f} GiB",),
            "find it with nvidia-smi: processes on one accelerator slow each other down",
        )
    if (conditions.worker_threads or 1) > 1:
        yield _finding(
            Cause.WORKER_THREADS,
            "each loader worker computes in several threads",
            (f"{conditions.worker_threads} threads",),
            ONE_THREAD,
        )


def _of_memory(evidence: Evidence) -> Iterator[Finding]:
    measured, host = evidence.measurement, evidence.host
    growth = (measured.epoch_host_memory_bytes or 0) - measured.host_memory_bytes
    if growth > LEAST_GROWTH * host.memory_bytes:
        figures = [f"{growth / 2**30:.2g} GiB more by the end of an epoch"]
        if evidence.anatomy is not None:
            figures.append(f"{evidence.anatomy.python_objects:,} Python objects in the dataset")
        yield _finding(
            Cause.DATASET_COPIES,
            "each worker makes its own copy of what it reads in the dataset",
            tuple(figures),
            KEEP_IN_ARRAYS,
        )


def _of_step(anatomy: Anatomy) -> Iterator[Finding]:
    if anatomy.synchronisations:
        yield _finding(
            Cause.SYNCHRONISATION,
            "the step reads values back into Python; on an accelerator the host waits there for all work in its queue",
            tuple(
                f"{each.operator} {each.per_step:.3g} times a step, in {each.where}"
                for each in anatomy.synchronisations
            ),
            "keep logged values as tensors (loss.detach()), and read them only every so many steps",
        )


def _of_dataset(evidence: Evidence, anatomy: Anatomy) -> Iterator[Finding]:
    if anatomy.batch_tensors >= MANY_TENSORS:
        yield _finding(
            Cause.MANY_TENSORS,
            "a batch consists of many tensors, each sent to the training process and copied to the device on its own",
            (f"{anatomy.batch_tensors} tensors in a batch",),
            "concatenate them into a few in collate_fn, with offsets",
        )
    if anatomy.numpy_arrays and not anatomy.is_custom_collate:
        yield _finding(
            Cause.NUMPY,
            "samples are numpy arrays, which collating turns into tensors one by one",
            (f"{anatomy.numpy_arrays} arrays in a sample",),
            "return torch.from_numpy(array) from the dataset",
        )
    batch_size = evidence.config.batch_size
    sample_bytes = evidence.measurement.batch_bytes // batch_size
    fetching = anatomy.sample_seconds * batch_size
    is_felt = fetching > FELT_SHARE * evidence.measurement.step_time.total
    if 0 < sample_bytes <= FEW_BYTES and is_felt and not anatomy.has_getitems and not evidence.facts.iterable:
        yield _finding(
            Cause.GETITEMS,
            "samples are small and fetched one at a time",
            (f"{sample_bytes} bytes a sample, {1e6 * anatomy.sample_seconds:.3g} us each",),
            "give the dataset __getitems__(indices), which fetches a whole batch at once",
        )
    yield from _of_workers(evidence, anatomy)


def _of_workers(evidence: Evidence, anatomy: Anatomy) -> Iterator[Finding]:
    """Yield the costs of starting workers with this dataset."""
    is_spawned, size = anatomy.start_method != "fork", anatomy.dataset_bytes
    if is_spawned and evidence.config.num_workers and evidence.measurement.first_batch_seconds > SLOW_START:
        yield _finding(
            Cause.SPAWN,
            f"workers start by {anatomy.start_method}: each imports everything anew and unpickles the dataset",
            (f"{evidence.measurement.first_batch_seconds:.1f} s until the first batch",),
            f"{'set persistent_workers=True, ' if evidence.should_keep_workers else ''}import less at the top of the "
            "dataset's module, and open the data on first use",
        )
    is_copied = is_spawned and size is not None and size >= LARGE_DATASET
    if is_copied or (not is_spawned and anatomy.python_objects >= MANY_OBJECTS):
        figures = [f"{anatomy.python_objects:,} Python objects in the dataset"]
        if size is not None:
            figures.append(f"{size / 2**20:.0f} MiB pickled")
        yield _finding(
            Cause.DATASET_COPIES,
            "every worker gets its own copy of the dataset"
            if is_copied
            else "the dataset consists of many Python objects: reading one changes its reference count, and forked "
            "workers copy its page",
            tuple(figures),
            KEEP_IN_ARRAYS,
        )


def _finding(cause: Cause, what: str, evidence: tuple[str, ...], advice: str) -> Finding:
    return Finding(cause=cause, is_limit=False, what=what, evidence=evidence, advice=advice)
