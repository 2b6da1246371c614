"""Findings beside the limit: habits of the code and of the machine that cost time or memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from autotune.diagnosis.findings import LEAST_SHARE, Cause, Evidence, Finding, limit, ms
from autotune.limits import percent
from autotune.probes import Anatomy
from autotune.records import Measurement

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
EACH_STEP = 0.5
"""Calls in a step from which it is about each step."""
UNEVEN = 0.1
"""Share of the slowest rank's part of a step by which another rank must be faster for a report."""
FOREIGN_BYTES = 2**29
"""Bytes that others may hold on an accelerator before a report: a display takes less."""


def habits(evidence: Evidence) -> Iterator[Finding]:
    """Yield the habits that cost time or memory, the machine's first."""
    anatomy, measured = evidence.anatomy, evidence.measurement
    inside = () if anatomy is None else (_of_code(evidence, anatomy), _of_workers(evidence, anatomy))
    for finding in chain(
        _of_machine(evidence), _of_script(measured), _of_ranks(measured), _of_memory(evidence), *inside
    ):
        yield replace(finding, is_limit=False)


def _of_machine(evidence: Evidence) -> Iterator[Finding]:
    conditions = evidence.measurement.conditions
    yield from lost_cpus(evidence)
    if (foreign := conditions.gpu_foreign_bytes or 0) >= FOREIGN_BYTES:
        yield limit(Cause.SHARED_GPU, f"it holds {foreign / 2**30:.1f} GiB", rest="")
    if (threads := conditions.worker_threads or 1) > 1:
        yield limit(Cause.WORKER_THREADS, f"{threads} threads", overload="")


def lost_cpus(evidence: Evidence) -> Iterator[Finding]:
    """Yield the finding of CPUs that the measuring process, or its workers, lost since the process began."""
    cpus, conditions = evidence.host.affinity_cpus, evidence.measurement.conditions
    masks = {"training": conditions.cpus, "each loader worker": conditions.worker_cpus or cpus}
    for who, own in masks.items():
        if own < cpus:
            yield limit(Cause.AFFINITY, f"{own} of {cpus} CPUs", who=who, own=str(own), cpus=str(cpus))
            return


def _of_script(measured: Measurement) -> Iterator[Finding]:
    if measured.apart_share >= LEAST_SHARE:
        yield limit(Cause.VALIDATION, f"{percent(measured.apart_share)} of the time that was measured")


def _of_ranks(measured: Measurement) -> Iterator[Finding]:
    slowest = measured.slowest_rank
    if slowest is None or (measured.rank_spread or 0.0) < UNEVEN:
        return
    fastest = min(measured.ranks, key=lambda rank: rank.own_seconds)
    waits = slowest.data_wait_seconds - fastest.data_wait_seconds > (slowest.own_seconds - fastest.own_seconds) / 2
    figure = f"{ms(slowest.own_seconds)} a step, rank {fastest.rank} {ms(fastest.own_seconds)}"
    part = "data loader and its share of the data" if waits else "device, and what only this rank does"
    yield limit(Cause.SLOW_RANK, figure, rank=str(slowest.rank), part=part)


def _of_memory(evidence: Evidence) -> Iterator[Finding]:
    measured = evidence.measurement
    growth = (measured.epoch_host_memory_bytes or 0) - measured.host_memory_bytes
    if growth > LEAST_GROWTH * evidence.host.memory_bytes:
        figures = [f"{growth / 2**30:.2g} GiB more by the end of an epoch"]
        if evidence.anatomy is not None:
            figures.append(f"{evidence.anatomy.python_objects:,} Python objects in the dataset")
        yield limit(Cause.DATASET_COPIES, *figures, copies="makes its own copy of what it reads in the dataset")


def _of_code(evidence: Evidence, anatomy: Anatomy) -> Iterator[Finding]:
    if anatomy.synchronisations:
        waits = [
            f"{each.operator} {each.per_step:.3g} times a step, in {each.where}" for each in anatomy.synchronisations
        ]
        yield limit(Cause.SYNCHRONISATION, *waits)
    if anatomy.cache_frees >= EACH_STEP:
        share = anatomy.cache_seconds / evidence.measurement.step_time.total
        yield limit(Cause.EMPTY_CACHE, f"{anatomy.cache_frees:.3g} times a step, {percent(share)} of the step's time")
    if anatomy.batch_tensors >= MANY_TENSORS:
        yield limit(Cause.MANY_TENSORS, f"{anatomy.batch_tensors} tensors in a batch")
    if anatomy.numpy_arrays and not anatomy.is_custom_collate:
        yield limit(Cause.NUMPY, f"{anatomy.numpy_arrays} arrays in a sample")
    batch_size = evidence.config.batch_size
    sample_bytes = evidence.measurement.batch_bytes // batch_size
    is_felt = anatomy.sample_seconds * batch_size > FELT_SHARE * evidence.measurement.step_time.total
    if 0 < sample_bytes <= FEW_BYTES and is_felt and not anatomy.has_getitems and not evidence.facts.iterable:
        yield limit(Cause.GETITEMS, f"{sample_bytes} bytes a sample, {1e6 * anatomy.sample_seconds:.3g} us each")


def _of_workers(evidence: Evidence, anatomy: Anatomy) -> Iterator[Finding]:
    is_spawned, size = anatomy.start_method != "fork", anatomy.dataset_bytes
    first = evidence.measurement.first_batch_seconds
    if is_spawned and evidence.config.num_workers and first > SLOW_START:
        keep = "set persistent_workers=True, " if evidence.should_keep_workers else ""
        yield limit(Cause.SPAWN, f"{first:.1f} s until the first batch", method=anatomy.start_method, keep=keep)
    is_copied = is_spawned and size is not None and size >= LARGE_DATASET
    if is_copied or (not is_spawned and anatomy.python_objects >= MANY_OBJECTS):
        figures = [f"{anatomy.python_objects:,} Python objects in the dataset"]
        if size is not None:
            figures.append(f"{size / 2**20:.0f} MiB pickled")
        by_touch = "copies what it reads of the dataset: reading changes the reference counts of its Python objects"
        copies = "gets its own copy of the dataset" if is_copied else by_touch
        yield limit(Cause.DATASET_COPIES, *figures, copies=copies)
