"""The limit of training with one configuration: one measured run, and probes of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autotune.config import Config
from autotune.diagnosis.findings import Diagnosis, Evidence
from autotune.diagnosis.limits import find
from autotune.errors import UsageError
from autotune.knobs import as_baseline, fitted
from autotune.machine.host import device_notes, inspect_host
from autotune.messages import Messages, Progress
from autotune.probes import LoaderTrace
from autotune.records import Attempt, Part, Probe, Request, Runner, Trial, WorkloadFacts
from autotune.remedies import tried
from autotune.runner.local import ProcessRunner
from autotune.search.attempt import measure_once_more, require_numbers
from autotune.workload import Script, Workload, describe

WINDOW_SECONDS = 5.0
"""Longest window of the measurement."""
PART_SECONDS = 2.0
"""Seconds of each probe of a part."""
TIME_LIMIT = 120.0
"""Seconds after which a measurement or a probe is given up."""


def diagnose(
    workload: str | Workload | Script,
    config: Config | Mapping[str, Any] | str | None = None,
    dataset: str | None = None,
    *,
    device: str = "auto",
    ranks: int | None = None,
    oversubscribe_ranks: bool = False,
    remedies: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Diagnosis:
    """Measure one configuration for some seconds, probe its parts, and name its limit and the remedy.

    ``workload``, ``dataset``, ``device``, ``ranks`` and ``oversubscribe_ranks`` are those of ``tune``. ``config`` is
    the configuration, a ``Config`` or its fields: by default batch size 32, no workers and fp32, or a script's own
    settings. ``remedies`` are measured too, for some two minutes: the items stored, in memory, and on the device.

    Raises ``UsageError``, ``UserCodeError`` and ``NothingFeasibleError`` when the configuration cannot be measured, and
    ``ConfigFileError`` when the trace cannot be written.
    """
    messages = Messages(on_progress=on_progress or (lambda progress: None))
    messages.show(Progress(phase="inspect"))
    source = describe(workload, dataset)
    with ProcessRunner(source, device, on_wait=messages.say, oversubscribe_ranks=oversubscribe_ranks) as runner:
        given = as_baseline(config, ranks=ranks)
        if remedies and given.ranks > 1:
            raise UsageError("--try: measures one process; leave out --ranks")
        facts = runner.inspect(given)
        if runner.script is not None and config is None:
            given = replace(runner.script.present, ranks=given.ranks)
        torch, way = facts.versions["torch"], {"is_chosen": device != "auto", "is_script": runner.script is not None}
        for note in device_notes(facts.device, inspect_host(), torch, given.ranks, **way):
            messages.note(note)
        found, loader = _examine(runner, fitted(given, facts, None), facts, messages)
        return replace(found, remedies=tuple(tried(runner, found, loader, messages))) if remedies else found


def _examine(
    runner: Runner, config: Config, facts: WorkloadFacts, messages: Messages
) -> tuple[Diagnosis, LoaderTrace | None]:
    def look(part: Part) -> Attempt:
        messages.show(Progress(phase="probe", running=config))
        return runner.measure(config, Request(seconds=PART_SECONDS, time_limit=TIME_LIMIT, part=part))

    messages.show(Progress(phase="baseline", running=config))
    request = Request(seconds=WINDOW_SECONDS, time_limit=TIME_LIMIT)
    attempt = measure_once_more(runner, config, request, lambda first: True, if_disturbed=True)
    trial = Trial(number=0, kind="baseline", config=config, attempt=attempt)
    messages.show(Progress(phase="baseline", finished=trial))
    measured = require_numbers(attempt)
    compute, loader, inside = look("compute"), look("loader"), look("anatomy")
    evidence = Evidence(
        config=config,
        facts=facts,
        host=inspect_host().for_rank(config.ranks),
        measurement=measured,
        compute=compute.compute,
        loader=loader.loader,
        anatomy=inside.anatomy,
        looks=(
            Probe(part="loader", config=config, attempt=loader),
            Probe(part="anatomy", config=config, attempt=inside),
        ),
    )
    failed = {"the step alone": compute, "the data loader": loader, "the workload's code": inside}
    unseen = (f"{what} could not be probed: {look.message}" for what, look in failed.items() if not look.found)
    found = Diagnosis(
        config=config,
        facts=facts,
        measurement=measured,
        findings=find(evidence),
        anatomy=inside.anatomy,
        notes=(*messages.notes, *measured.notes, *unseen),
    )
    return found, loader.loader
