"""Records built by hand, as a run would make them, for the tests that only read them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from autotune.config import Config
from autotune.diagnosis.findings import Cause, Diagnosis, Finding
from autotune.machine.host import Host
from autotune.outcome import Outcome
from autotune.probes import (
    Anatomy,
    CodeShare,
    ComputeProbe,
    GradientNoise,
    LoaderTrace,
    NumericsCheck,
    Synchronisation,
)
from autotune.records import Attempt, Conditions, Measurement, Probe, StepTime, Trial, WorkloadFacts
from autotune.report.result import Result
from autotune.result import Check, Finalist, Verdict
from autotune.settings import Amp

BASELINE = Config(batch_size=32)
ANSWER = Config(
    batch_size=128,
    num_workers=2,
    prefetch_factor=2,
    pin_memory=True,
    persistent_workers=True,
    amp="bf16",
    intra_op_threads=1,
)


Recorded = TypeVar("Recorded", Trial, Probe)


def conditions(**changes: Any) -> Conditions:
    """A quiet machine of two CPUs, without a GPU."""
    example = Conditions(
        own_cpus=1.0,
        foreign_cpus=0.0,
        cpus=2,
        is_crowded=False,
        throttled_share=0.0,
        storage_share=0.0,
        worker_threads=None,
        gpu_utilisation=None,
        gpu_foreign_bytes=None,
        gpu_slowdowns=(),
        allocator_retries=0,
    )
    return replace(example, **changes)


def measurement(**changes: Any) -> Measurement:
    """A step of 100 ms on a CPU, most of it spent waiting for data."""
    example = Measurement(
        samples_per_second=1234.5,
        ci95=(1200.0, 1270.0),
        steady_samples_per_second=1300.0,
        ceiling_samples_per_second=2960.0,
        steps=40,
        settling_steps=10,
        samples=1280,
        seconds=1.037,
        step_time=StepTime(
            data_wait=0.062, host_to_device=0.0, forward=0.012, backward=0.022, optimizer=0.003, other=0.001
        ),
        device_idle_share=None,
        first_batch_seconds=0.2,
        restart_seconds=0.1,
        persistence_gain=None,
        epoch_samples=4096,
        peak_memory_bytes=512 * 2**20,
        memory="host",
        memory_limit_bytes=8 * 2**30,
        peak_allocated_bytes=None,
        host_memory_bytes=512 * 2**20,
        shared_memory_bytes=0,
        worker_growth_bytes_per_sample=None,
        epoch_host_memory_bytes=None,
        ready_batches=0.0,
        conditions=conditions(),
        loss=2.3,
    )
    return replace(example, **changes)


def device_measurement(**changes: Any) -> Measurement:
    """The same on an accelerator of 80 GiB, of which 24 are used."""
    device = {
        "memory": "device",
        "peak_memory_bytes": 24 * 2**30,
        "memory_limit_bytes": 80 * 2**30,
        "peak_allocated_bytes": 22 * 2**30,
        "device_idle_share": 0.6,
        "step_time": StepTime(
            data_wait=0.062, host_to_device=0.004, forward=0.01, backward=0.02, optimizer=0.003, other=0.001
        ),
    }
    return measurement(**{**device, **changes})


def compute_probe(**changes: Any) -> ComputeProbe:
    """A step of 10 ms for a batch of 32 on a CPU of two cores."""
    example = ComputeProbe(
        samples_per_second=3200.0,
        first_step_seconds=0.020,
        host_seconds=0.010,
        cpu_seconds=0.020,
        peak_memory_bytes=512 * 2**20,
        memory="host",
        memory_limit_bytes=8 * 2**30,
        host_memory_bytes=512 * 2**20,
    )
    return replace(example, **changes)


def loader_trace(**changes: Any) -> LoaderTrace:
    """Batches of 32 that take one worker 60 ms each, all of it computing."""
    example = LoaderTrace(
        batch_size=32,
        build_seconds=(0.060,) * 20,
        receive_seconds=0.0,
        pin_seconds=0.0,
        transfer_seconds=0.0,
        cpu_seconds=0.060,
        batch_bytes=2**20,
        start_seconds=0.02,
        worker_memory_bytes=2**24,
        storage_share=0.0,
    )
    return replace(example, **changes)


def numerics_check(**changes: Any) -> NumericsCheck:
    """Twenty steps in which a precision does what fp32 does."""
    losses = tuple(2.0 * 0.97**step for step in range(20))
    example = NumericsCheck(
        reference_losses=losses,
        other_losses=tuple(1.01 * loss for loss in losses),
        losses=tuple(1.001 * loss for loss in losses),
        overflows=(),
        settles=True,
        seconds=1.0,
    )
    return replace(example, **changes)


def gradient_noise(**changes: Any) -> GradientNoise:
    """Gradients of small batches of 2 samples and of large ones of 32, as noisy as 32 samples make them."""
    points = (((15.0, 1.8), (17.0, 2.0), (19.0, 2.2)),) * 3
    return replace(GradientNoise(batch_size=2, parts=16, points=points, trained_samples=1_000), **changes)


def anatomy(**changes: Any) -> Anatomy:
    """Samples of 2 ms, decoded in Python, and a training step that reads its loss."""
    example = Anatomy(
        sample_seconds=0.0018,
        collate_seconds=0.0004,
        code=(
            CodeShare(where="built-in zlib.decompress", share=0.6),
            CodeShare(where="workload.py:41 __getitem__", share=0.3),
        ),
        batch_tensors=2,
        numpy_arrays=0,
        has_getitems=False,
        is_custom_collate=False,
        dataset_bytes=2**20,
        python_objects=200,
        start_method="fork",
        operators_per_step=150,
        synchronisations=(
            Synchronisation(operator="aten::_local_scalar_dense", where="workload.py:57 step", per_step=1.0),
        ),
        cache_frees=0.0,
        cache_seconds=0.0,
        seconds=2.0,
    )
    return replace(example, **changes)


def compared(*amps: Amp) -> tuple[Probe, ...]:
    """Looks that found these precisions to train like fp32."""
    return tuple(
        Probe(part="numerics", config=Config(amp=amp), attempt=Attempt(outcome=Outcome.OK, payload=numerics_check()))
        for amp in amps
    )


def changed(example: Recorded, **changes: Any) -> Recorded:
    """A trial or a look with other fields, those of its attempt among them; a trial's payload as ``measurement``."""
    if "measurement" in changes:
        changes["payload"] = changes.pop("measurement")
    names = {field.name for field in fields(Attempt)} & set(changes)
    attempt = replace(changes.get("attempt", example.attempt), **{name: changes.pop(name) for name in names})
    return replace(example, **{**changes, "attempt": attempt})


def trial(**changes: Any) -> Trial:
    attempt = Attempt(outcome=Outcome.OK, payload=measurement(), seconds=6.5)
    return changed(Trial(number=0, kind="baseline", config=BASELINE, attempt=attempt), **changes)


def failed_trial(**changes: Any) -> Trial:
    attempt = Attempt(outcome=Outcome.DEVICE_OOM, message="CUDA out of memory.\nTried to allocate 20.00 GiB")
    config = replace(ANSWER, batch_size=2048)
    return changed(Trial(number=4, kind="search", config=config, attempt=attempt), **changes)


def facts(**changes: Any) -> WorkloadFacts:
    """A small map-style workload on a CPU."""
    example = WorkloadFacts(
        dataset_length=4096,
        epoch_samples=4096,
        iterable=False,
        sets_epoch=False,
        has_batch_norm=False,
        loss_reduction="mean",
        parameters=1_000_000,
        device="cpu",
        device_name="a CPU",
        amp_modes=("off", "bf16"),
        intra_op_threads=2,
        inter_op_threads=2,
        model_name="Net",
        dataset_name="Images",
        fingerprint="0123456789abcdef",
        versions={"python": "3.11.9", "torch": "2.13.0"},
    )
    return replace(example, **changes)


def host(**changes: Any) -> Host:
    example = Host(
        cpus=2,
        cpu_model="a CPU",
        affinity_cpus=2,
        quota_cpus=None,
        memory_bytes=8 * 2**30,
        shm_bytes=2**30,
        gpus=(),
        versions={"python": "3.11.9", "torch": "2.13.0", "autotune": "0.1.0"},
        platform="Linux",
    )
    return replace(example, **changes)


OWN_COMPUTE = Finding(
    cause=Cause.COMPUTE,
    is_limit=True,
    what="the model's own compute",
    evidence=("96 % of the rate on batches already on the device",),
    advice="torch.compile",
    share=0.96,
)


def faster_result(**changes: Any) -> Result:
    """A proven gain: three confirmed rounds, one trial out of memory."""
    after = measurement(
        samples_per_second=2853.0,
        steady_samples_per_second=2900.0,
        step_time=StepTime(
            data_wait=0.001, host_to_device=0.0, forward=0.014, backward=0.026, optimizer=0.003, other=0.001
        ),
        peak_memory_bytes=3 * 2**30,
    )
    rounds = [
        trial(number=5 + index, kind="confirm", config=config, measurement=numbers)
        for index, (config, numbers) in enumerate([(ANSWER, after), (BASELINE, measurement())] * 3)
    ]
    measured = {"samples_per_second": 2853.0, "ci95": [2811.0, 2895.0], "verdict": "faster"}
    example = Result(
        config=replace(ANSWER, measured=measured),
        baseline=BASELINE,
        samples_per_second=2853.0,
        ci95=(2811.0, 2895.0),
        baseline_samples_per_second=1234.5,
        baseline_ci95=(1201.0, 1268.0),
        rounds=3,
        speedup=2.311,
        speedup_ci95=(2.18, 2.45),
        verdict=Verdict.FASTER,
        next_run_95=(2760.0, 2949.0),
        likeliest=Finalist(
            config=ANSWER, speedup=2.311, interval=(2.18, 2.45), ratios=(2.29, 2.31, 2.333), has_failed=False
        ),
        stop_reason="the rate is within 3 % of the compute ceiling",
        remaining_gain=0.0375,
        facts=facts(),
        host=host(),
        measurement=after,
        baseline_measurement=measurement(),
        history=(trial(), failed_trial(), *rounds),
        seconds=182.4,
        findings=(OWN_COMPUTE,),
    )
    return replace(example, **changes)


def no_gain_result(**changes: Any) -> Result:
    """Nothing beats the baseline by more than 3 %."""
    config = replace(BASELINE, measured={"samples_per_second": 1234.5, "verdict": "no gain above 3 %"})
    example = faster_result(
        config=config,
        samples_per_second=1234.5,
        ci95=(1200.0, 1270.0),
        speedup=1.0,
        speedup_ci95=None,
        verdict=Verdict.NO_GAIN,
        most_gain=0.028,
        likeliest=Finalist(config=ANSWER, speedup=1.004, interval=(0.98, 1.028), ratios=(1.0,) * 8, has_failed=False),
        stop_reason="no untried setting is expected to gain more than 2 %",
        remaining_gain=0.014,
        measurement=measurement(),
        notes=("the loader is the limit: store the images uncompressed",),
    )
    return replace(example, **changes)


def undecided_result(**changes: Any) -> Result:
    """What is likely to be faster, in three rounds of a short run."""
    found = Finalist(config=ANSWER, speedup=2.311, interval=(0.97, 3.1), ratios=(2.3, 2.1, 2.5), has_failed=False)
    measured = {"samples_per_second": 2853.0, "verdict": "undecided"}
    example = faster_result(
        config=replace(ANSWER, measured=measured),
        verdict=Verdict.UNDECIDED,
        speedup_ci95=(0.97, 3.1),
        likeliest=found,
        missing=("more time (--budget 1m)", "a quieter machine (other processes used 1.1 of 2 CPUs meanwhile)"),
        stop_reason="the budget is spent",
        remaining_gain=1.4,
    )
    return replace(example, **changes)


def check(**changes: Any) -> Check:
    example = Check(
        config=replace(ANSWER, measured={"samples_per_second": 2000.0, "speedup": 2.0, "speedup_ci95": [1.9, 2.1]}),
        baseline=BASELINE,
        verdict="holds",
        samples_per_second=1990.0,
        speedup=1.99,
        speedup_ci95=(1.9, 2.09),
        rounds=5,
        notes=(),
    )
    return replace(example, **changes)


LATE_LOADER = Finding(
    cause=Cause.DECODING,
    is_limit=True,
    what="training waits for data: building a batch takes CPU time",
    evidence=("62 ms of a step of 100 ms waited", "70 % in data.py:7 decode"),
    advice="more workers; do less for each sample",
    share=0.62,
)
LONG_LIST = Finding(
    cause=Cause.DATASET_COPIES,
    is_limit=False,
    what="the dataset consists of many Python objects",
    evidence=("200,000 Python objects in the dataset",),
    advice="keep large data in a few arrays",
)


def diagnosis(**changes: Any) -> Diagnosis:
    """A loader that is late, and a dataset of many objects."""
    example = Diagnosis(
        config=BASELINE,
        facts=facts(),
        measurement=measurement(),
        findings=(LATE_LOADER, LONG_LIST),
        anatomy=None,
        notes=(),
    )
    return replace(example, **changes)
