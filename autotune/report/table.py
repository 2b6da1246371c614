"""A trial as one row of a table: columns, units and meanings. Pure."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.errors import UsageError
from autotune.output import Kind, write_file
from autotune.report.text import printable
from autotune.settings import SETTINGS

if TYPE_CHECKING:
    import pandas

    from autotune.records import Measurement, Trial

TABLES = (".csv", ".parquet")
DTYPES = {int: "Int64", float: "Float64", bool: "boolean", str: "string"}
"""The pandas type of a column by that of its values: all of them allow missing values."""


class Column(NamedTuple):
    """What a column holds."""

    unit: str
    """Its unit; empty for names and switches."""
    meaning: str
    """What it says, in a few words."""


COLUMNS = {
    "number": Column("", "position in the study; the baseline is 0"),
    "kind": Column("", "why it was measured: baseline, search or confirm"),
    "outcome": Column("", "outcome, such as ok, device_oom, timeout"),
    **{field: Column(each.unit, each.meaning) for field, each in SETTINGS.items()},
    "samples_per_second": Column("samples/s", "training rate over whole epochs"),
    "ci95_low": Column("samples/s", "lower end of its 95 % interval, within this measurement"),
    "ci95_high": Column("samples/s", "upper end"),
    "predicted_samples_per_second": Column("samples/s", "expected rate, before it ran"),
    "bound_samples_per_second": Column("samples/s", "upper bound, before it ran"),
    "steady_samples_per_second": Column("samples/s", "rate inside an epoch, without restarts"),
    "ceiling_samples_per_second": Column("samples/s", "rate of the same step on batches already on the device"),
    "step_seconds": Column("s", "an average step"),
    "data_wait_seconds": Column("s", "of it: waiting for the next batch"),
    "host_to_device_seconds": Column("s", "of it: copying the batch to the device"),
    "forward_seconds": Column("s", "of it: model and loss"),
    "backward_seconds": Column("s", "of it: gradients"),
    "communication_seconds": Column("s", "of it: synchronising the gradients of several ranks"),
    "optimizer_seconds": Column("s", "of it: optimizer, gradient scaling and zeroing"),
    "other_seconds": Column("s", "of it: the loop itself"),
    "slowest_rank": Column("", "the rank whose step that is, for which the others wait; empty with one process"),
    "rank_spread": Column("", "by which share of its time the fastest rank's own part of a step is shorter"),
    "device_idle_share": Column("", "share of the window in which the accelerator waited between steps"),
    "first_batch_seconds": Column("s", "from asking a new loader for an iterator to its first batch"),
    "restart_seconds": Column("s", "the same at the start of a later epoch"),
    "order_seconds": Column("s", "time of the sampler to order an epoch"),
    "persistence_gain": Column("", "gain of keeping the workers between epochs, as a share of the rate"),
    "memory": Column("", "the memory that limits the run: device or host"),
    "peak_memory_bytes": Column("bytes", "peak of that memory"),
    "memory_limit_bytes": Column("bytes", "how much of it there is"),
    "peak_allocated_bytes": Column("bytes", "peak of live tensors on the device"),
    "host_memory_bytes": Column("bytes", "peak host memory of training process and workers, shared pages once"),
    "shared_memory_bytes": Column("bytes", "the part of it in batches on their way"),
    "worker_growth_bytes_per_sample": Column("bytes", "growth of the workers for each sample built"),
    "epoch_host_memory_bytes": Column("bytes", "host memory at the end of an epoch, if workers go on copying"),
    "ready_batches": Column("batches", "built and not yet consumed, on average"),
    "unique_share": Column("", "share of the batches that are not another worker's"),
    "steps": Column("steps", "in the measured window"),
    "settling_steps": Column("steps", "on the loader before it"),
    "samples": Column("samples", "in the measured window"),
    "seen_samples": Column("samples", "from the first batch of the loader to the end of the window"),
    "window_seconds": Column("s", "length of the measured window"),
    "epoch_samples": Column("samples", "in one epoch; empty where the dataset does not say"),
    "beginning_samples": Column("samples", "at the beginning of an iterable dataset; empty where its end was seen"),
    "idle_workers": Column("processes", "loader workers that got no data"),
    "is_uneven": Column("", "whether workers of an iterable dataset got different amounts"),
    "stopped_early": Column("", "whether the window ended as soon as the trial was sure to lose"),
    "loss": Column("", "the last loss of the window"),
    "own_cpus": Column("CPUs", "used by training process and workers"),
    "foreign_cpus": Column("CPUs", "used by everything else"),
    "cpus": Column("CPUs", "that the process may be scheduled on"),
    "is_crowded": Column("", "whether others took CPUs that the measurement could have used"),
    "throttled_share": Column("", "seconds for which a quota stopped the processes, per second"),
    "storage_share": Column("", "share of the bytes read that came from storage, not from the page cache"),
    "worker_threads": Column("threads", "most that one loader worker computed in"),
    "gpu_utilisation": Column("", "share of the last moments in which a kernel ran"),
    "gpu_foreign_bytes": Column("bytes", "device memory that other processes hold"),
    "gpu_foreign_share": Column("", "share of the time in which other processes computed on the GPU"),
    "gpu_slowdowns": Column("", "faults or heat that kept the clocks down; separated by semicolons"),
    "allocator_retries": Column("times", "device memory was full and the allocator had to free its cache"),
    "trial_seconds": Column("s", "wall time that the trial cost, process start included"),
    "message": Column("", "the error, in one line"),
    "notes": Column("", "notes on the number; separated by semicolons"),
}
"""The columns of ``Result.trials`` and of its CSV and Parquet files, in order; missing values are empty."""


def trial_row(trial: Trial) -> dict[str, Any]:
    """Return a trial as plain values by column."""
    config = trial.config
    row = dict.fromkeys(COLUMNS)
    row |= {
        "number": trial.number,
        "kind": trial.kind,
        "outcome": str(trial.outcome),
        **config.plain(),
        "ranks": config.ranks,
        "options": ",".join(config.options),
        "predicted_samples_per_second": trial.predicted,
        "bound_samples_per_second": trial.bound,
        "trial_seconds": trial.attempt.seconds,
        "message": printable(trial.attempt.message),
    }
    if trial.measurement:
        row |= _measured(trial.measurement)
    return row


def _measured(measurement: Measurement) -> dict[str, Any]:
    values = asdict(measurement)
    step, conditions = values.pop("step_time"), values.pop("conditions")
    low, high = values.pop("ci95") or (None, None)
    for name in ("neighbours", "named_cpus", "gpu_foreign_pids"):
        del conditions[name]  # the message names them
    window, slowest = values.pop("seconds"), measurement.slowest_rank
    del values["ranks"]
    return {
        **values,
        **conditions,
        **{f"{part}_seconds": seconds for part, seconds in step.items()},
        "step_seconds": measurement.step_time.total,
        "window_seconds": window,
        "slowest_rank": slowest and slowest.rank,
        "rank_spread": measurement.rank_spread,
        "ci95_low": low,
        "ci95_high": high,
        "gpu_slowdowns": "; ".join(conditions["gpu_slowdowns"]),
        "notes": printable("; ".join(measurement.notes)),
    }


def trials_frame(history: tuple[Trial, ...]) -> pandas.DataFrame:
    """Return trials as rows of a pandas DataFrame with the columns of ``COLUMNS``; their units are in its ``attrs``."""
    import pandas

    frame = pandas.DataFrame([trial_row(trial) for trial in history], columns=list(COLUMNS), dtype=object)
    for name in COLUMNS:
        kinds = {type(value) for value in frame[name] if value is not None}
        if len(kinds) == 1 and (dtype := DTYPES.get(kinds.pop())):
            frame[name] = pandas.array(frame[name], dtype=dtype)  # type: ignore[call-overload]
    frame.attrs["units"] = {name: column.unit for name, column in COLUMNS.items()}
    return frame


def save_trials(history: tuple[Trial, ...], path: Path) -> None:
    """Write trials to a CSV or Parquet file, by its suffix.

    Raises ``UsageError`` for another suffix or without pyarrow, ``ConfigFileError`` where it cannot be written.
    """
    if path.suffix not in TABLES:
        raise UsageError(f"{path}: trials are written as {' or '.join(TABLES)}")
    frame, content = trials_frame(history), io.BytesIO()
    if path.suffix == ".csv":
        frame.to_csv(content, index=False)
    else:
        try:
            frame.to_parquet(content, index=False)
        except ImportError:
            raise UsageError(f"{path}: Parquet needs pyarrow: pip install 'torch-autotune[report]'") from None
    write_file(path, content.getvalue())


def _is_table(path: Path) -> bool:
    """Return whether a file is a table of trials, also of a release with fewer columns."""
    if path.suffix == ".csv":
        with path.open("rb") as file:
            names = file.readline(2**14).decode(errors="replace").rstrip().split(",")
    else:
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import read_schema

            names = list(read_schema(path).names)
        except (ImportError, ArrowInvalid):
            return False
    return names[:3] == list(COLUMNS)[:3] and COLUMNS.keys() >= set(names)


TABLE = Kind("table of trials", _is_table)
