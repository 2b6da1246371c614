"""Results in words and figures, for every page and terminal that shows them. Pure; rates are samples per second."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from autotune.config import beginning_text, change_of_training
from autotune.limits import format_duration, format_size, percent
from autotune.notes import busy_text
from autotune.outcome import Outcome
from autotune.result import Verdict, verdict_text
from autotune.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.config import Config
    from autotune.diagnosis.findings import Finding
    from autotune.records import Measurement, Trial
    from autotune.result import Answer, TriedOption

TIMES = "\N{MULTIPLICATION SIGN}"
RATE = "samples/s (95 %)"
COMMAND = "python -m autotune"
LEAST_SHARE = 0.005
"""Parts of the time below this share everywhere are left out: they would read 0 %."""
TIME_PARTS = {
    "data_wait": "waiting for data",
    "host_to_device": "copy to device",
    "forward": "forward, loss",
    "backward": "backward",
    "communication": "synchronising ranks",
    "optimizer": "optimizer",
    "other": "other",
    "restart": "starting epochs",
}
"""The parts of the time of training, in order, and their names."""
LEAST_CHANGE = 10 * 2**20
"""Changes of memory below so many bytes are not worth a word."""
LEAST_TIMES = 1.2
"""Speed-ups below are told in three figures."""
MANY_TIMES = 10.0
"""Gains above are told as a multiple."""
UNSURE = 2.0
"""Ratio of the largest possible gain to the expected one, above which too little is known."""
_FLAG = re.compile(
    r"(?<![\w-])--(?P<name>[a-z][a-z-]*[a-z])(?:\s(?P<value>\d(?:[\w.,]*\w)?|off,\w+|same-batch|samples))?"
)
"""A flag in a message, with the value that it advises."""
LEAST_START = 1.0
"""Seconds by which the first step is longer, below which that is not worth a word."""


def time_parts(measurement: Measurement) -> dict[str, float]:
    """Return the seconds of each part for one sample; they add up to the time of a sample over whole epochs."""
    rate, step = measurement.samples_per_second, measurement.step_time
    steady = 1 / max(rate, measurement.steady_samples_per_second)
    parts = {part: steady * seconds / (step.total or 1.0) for part, seconds in asdict(step).items()}
    if not step.total:
        parts["other"] = steady
    return {**parts, "restart": 1 / rate - steady}


class Row(NamedTuple):
    """One line of a comparison, with a cell for each configuration."""

    name: str
    cells: tuple[str, ...]
    shares: tuple[float, ...] = ()
    """Share of the time in each configuration, for a part of it."""
    is_setting: bool = False
    """Whether the line shows a setting, not a measurement."""


class SideBySide(NamedTuple):
    """Configurations side by side: settings, rate, memory and time of a step."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def compared(result: Answer) -> dict[str, tuple[Config, Measurement]]:
    """Return baseline and answer by their heading, or the baseline alone where that is the answer."""
    if result.config == result.baseline:
        return {"your configuration": (result.config, result.measurement)}
    return {"before": (result.baseline, result.baseline_measurement), "after": (result.config, result.measurement)}


def before_after(result: Answer) -> SideBySide:
    """Return the baseline beside the answer, or the baseline alone where that is the answer."""
    columns, rate = compared(result), rate_with_interval(result.samples_per_second, result.ci95)
    was = rate_with_interval(result.baseline_samples_per_second, result.baseline_ci95)
    return _side_by_side(columns, (was, rate)[-len(columns) :])


def one_configuration(config: Config, measurement: Measurement) -> SideBySide:
    """Return one configuration with the rate of its step on a batch in memory."""
    rate = rate_with_interval(measurement.samples_per_second, measurement.ci95)
    ready = Row("with data ready", (rate_text(measurement.ceiling_samples_per_second),))
    return _side_by_side({"your configuration": (config, measurement)}, (rate,), ready)


def _side_by_side(
    columns: Mapping[str, tuple[Config, Measurement]], rates: tuple[str, ...], *further: Row
) -> SideBySide:
    configs, measurements = zip(*columns.values(), strict=True)
    parts = [time_parts(each) for each in measurements]
    totals = [sum(each.values()) for each in parts]
    rows = [Row(name, cells, is_setting=True) for name, cells in _settings_rows(configs).items()]
    rows += [Row(RATE, rates), *further]
    rows.extend(Row(name, cells) for name, cells in _measured_rows(measurements).items())
    for part, heading in TIME_PARTS.items():
        shares = tuple(each[part] / total if total else 0.0 for each, total in zip(parts, totals, strict=True))
        if max(shares) >= LEAST_SHARE:
            rows.append(Row(f"  {heading}", tuple(f"{percent(share):>5}" for share in shares), shares))
    return SideBySide(tuple(columns), tuple(rows))


def rate_with_interval(rate: float, interval: tuple[float, float] | None) -> str:
    """Return a rate and its interval, without the unit."""
    return rate_text(rate, interval) + (" ({} to {})".format(*map(rate_text, interval)) if interval else "")


def _settings_rows(configs: Sequence[Config]) -> dict[str, tuple[str, ...]]:
    rows: dict[str, Callable[[Config], str]] = {
        "batch size": lambda config: str(config.batch_size),
        "workers (prefetch)": _workers_text,
        "pinned memory": lambda config: "yes" if config.pin_memory else "no",
        "amp": lambda config: config.amp,
        "threads": lambda config: threads_text(config) or "torch's own choice",
    }
    if any(config.options for config in configs):
        rows["options"] = lambda config: ", ".join(config.options) or "none"
    if any(config.ranks > 1 for config in configs):
        rows = {"ranks": lambda config: str(config.ranks), **rows}
    if any(config.accumulation_steps > 1 for config in configs):
        rows["accumulation steps"] = lambda config: str(config.accumulation_steps)
    rare = dict.fromkeys(name for config in configs for name in config.rare)
    further = {SETTINGS[name].heading: tuple(str(each.rare.get(name, "as it is")) for each in configs) for name in rare}
    return {heading: tuple(map(shown, configs)) for heading, shown in rows.items()} | further


def _workers_text(config: Config) -> str:
    if not config.num_workers:
        return "none"
    kept = "" if config.persistent_workers else ", new each epoch"
    return f"{config.num_workers} ({config.prefetch_factor}){kept}"


def threads_text(config: Config) -> str:
    """Return ``intra`` or ``intra+inter``; empty where both are torch's own choice."""
    if config.inter_op_threads is None:
        return str(config.intra_op_threads or "")
    return f"{config.intra_op_threads or 'auto'}+{config.inter_op_threads}"


def memory_text(measurement: Measurement) -> str:
    """Return the peak of the memory that limits the run, and how much there is; of several ranks, for the fullest."""
    peak, limit = measurement.peak_memory_bytes, measurement.memory_limit_bytes
    each = ", each rank" if measurement.ranks else ""
    return f"{gibibytes_text(peak)} of {gibibytes_text(limit)} GiB {measurement.memory}{each}"


def _measured_rows(measurements: Sequence[Measurement]) -> dict[str, tuple[str, ...]]:
    slowest = tuple(map(_slowest_rank_text, measurements))
    rows = {"peak memory": tuple(map(memory_text, measurements)), **({"slowest rank": slowest} if any(slowest) else {})}
    return {**rows, "time per step": tuple(step_text(each.step_time.total) for each in measurements)}


def _slowest_rank_text(measurement: Measurement) -> str:
    slowest = measurement.slowest_rank
    if slowest is None:
        return ""
    return f"{slowest.rank} of {len(measurement.ranks)}, spread {percent(measurement.rank_spread or 0.0)}"


def gibibytes_text(count: float) -> str:
    """Return a size in GiB, without the unit."""
    size = count / 2**30
    return f"{size:.1f}" if size >= 1 else f"{size:.2f}"


def rate_text(rate: float, interval: tuple[float, float] | None = None) -> str:
    """Return samples per second, without the unit; with one digit where the interval is wider than the rate."""
    if interval and interval[1] - interval[0] > rate:
        return f"about {rate_text(float(f'{rate:.1g}'))}"
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.3g}"


def step_text(seconds: float) -> str:
    """Return the time of a step, with its unit."""
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def remaining_gain_text(result: Answer) -> str:
    """Return the most that a perfect data loader would gain, as a sentence."""
    other = other_steps_text(result)
    return f"A perfect data loader would gain {own_gain_text(result)}{f'; {other}' if other else ''}."


def own_gain_text(result: Answer) -> str:
    """Return the most that the answer's step would gain from a perfect data loader."""
    own, used, all_ = _own_gain(result), result.config.intra_op_threads, result.facts.intra_op_threads
    gain = f"at most {percent(own)}" if own < MANY_TIMES else f"at most {own:,.0f} times"
    leaves_some = result.facts.device == "cpu" and result.config.num_workers and used is not None and used < all_
    return f"{gain} with {used} of {all_} threads" if leaves_some else gain


def other_steps_text(result: Answer) -> str:
    """Return the most that another step would gain beside a perfect data loader; empty where it is no more."""
    gain = result.remaining_gain
    if gain <= _own_gain(result) + LEAST_SHARE:
        return ""
    ceilings = [step.ceiling for step in result.landscape.steps if not step.refusal] if result.landscape else []
    is_known = gain < MANY_TIMES and (1 + gain) * result.samples_per_second < UNSURE * max(ceilings, default=math.inf)
    other = f"with another {_other_steps(result)}"
    return f"{other} at most {percent(gain)}" if is_known else f"{other} the limit is unknown"


def _own_gain(result: Answer) -> float:
    is_alone = result.facts.device == "cpu" and not result.config.num_workers
    return result.measurement.gain_of_loader(is_alone=is_alone)


def _other_steps(result: Answer) -> str:
    steps = result.landscape.steps if result.landscape else ()
    names = ["batch size"] if len({step.batch_size for step in steps}) != 1 else []
    names += ["precision"] if len({step.amp for step in steps}) != 1 else []
    names += ["thread count"] if result.facts.device == "cpu" else []
    *first, last = names or ["step"]
    return f"{', '.join(first)} or {last}" if first else last


def outcomes_text(history: Sequence[Trial]) -> str:
    """Return the number of trials by outcome."""
    counts = Counter(trial.outcome for trial in history)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "none"


def counted(count: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def config_text(config: Config) -> str:
    """Return a configuration in short form, without torch's defaults."""
    ranks = f"{config.ranks} ranks{TIMES}" if config.ranks > 1 else ""
    parts = [f"{ranks}batch {config.batch_size}", "no workers"]
    if config.num_workers:
        parts[1] = f"workers {config.num_workers}{TIMES}{config.prefetch_factor}"
        if not config.persistent_workers:
            parts.append("not persistent")
    parts += map(str, config.rare.values())
    if config.pin_memory:
        parts.append("pin")
    parts.append(config.precision)
    if config.accumulation_steps > 1:
        parts.append(f"accumulate {config.accumulation_steps}")
    parts.extend(config.options)
    if threads_text(config):
        parts.append(f"threads {threads_text(config)}")
    return " · ".join(parts)


def verdict_title(result: Answer) -> str:
    """Return the verdict in a few words, with the cost of another batch."""
    if result.verdict is Verdict.FASTER:
        return f"{result.speedup:.2f} times the samples a second{_cost_text(result)}"
    if result.verdict is Verdict.NO_GAIN:
        return capital(verdict_text(result.verdict, result.most_gain))
    if result.config == result.baseline:
        return "Undecided"
    about = f"{result.speedup:.2f}" if result.speedup < LEAST_TIMES else f"{result.speedup:.2g}"
    return f"Probably about {about} times the samples a second{_cost_text(result)}"


def _cost_text(result: Answer) -> str:
    if found := same_loss_pace(result):
        return f", {found[0]} as fast to the same loss"
    return ", at a cost in loss that is not known" if result.no_noise else ""


def verdict_sentence(result: Answer) -> str:
    """Return the verdict with its evidence, and the way to a proof."""
    details = verdict_details(result)
    return f"{verdict_title(result)}: {details[:1].lower()}{details[1:]}"


def verdict_details(result: Answer) -> str:
    """Return the evidence behind the verdict's title."""
    if result.verdict is Verdict.FASTER:
        where = beginning_text(result.baseline_measurement.beginning_samples)
        rounds = counted(result.rounds, "round")
        vague = _vague_text(result, result.speedup, result.speedup_ci95)
        vague = f"; how much faster is open: {vague}" if vague else ""
        return f"{_interval_text(result.speedup_ci95)}, confirmed in {rounds} of fresh processes{where}{vague}."
    if result.verdict is Verdict.NO_GAIN:
        if result.likeliest is None:
            return "Keep your settings: training hardly waits, and your loader is not the limit."
        return f"Keep your settings. {_best_text(result)}."
    missing = " and ".join(result.missing)
    if result.config != result.baseline:
        proof = f" {capital(missing)} would prove it." if missing else ""
        interval = f"; {_interval_text(result.speedup_ci95)}" if result.speedup_ci95 else ""
        if vague := _vague_text(result, result.speedup, result.speedup_ci95):
            interval += f", so {vague}"
        return f"{counted(result.rounds, 'round')}, no proof yet{interval}.{proof}"
    best = f"{_best_text(result)}; keep your settings for now"
    found = "Nothing ran beside your settings, so keep them for now" if result.likeliest is None else best
    return f"{found}.{f' {capital(missing)} would decide it.' if missing else ''}"


def capital(text: str) -> str:
    """Return a text that begins with a capital, but for the name of a file."""
    name = text.split(maxsplit=1)[0] if text.strip() else ""
    return text if "." in name.rstrip(".") or "/" in name else f"{text[:1].upper()}{text[1:]}"


def _interval_text(interval: tuple[float, float] | None) -> str:
    return f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}" if interval else "no interval yet"


def _best_text(result: Answer) -> str:
    best = result.likeliest
    if best is None:
        return "Nothing was compared with them"
    name, rounds = f"The best other configuration, {config_text(best.config)},", len(best.ratios)
    if best.interval is None:
        made = {trial.round for trial in result.history if trial.kind == "confirm" and trial.config == best.config}
        why = "that nobody disturbed" if len(made) > rounds else "that there was time for"
        return f"{name} was {_few_rounds_text(best.ratios)} {why}"
    if vague := _vague_text(result, best.speedup, best.interval):
        return f"{name} was measured in {rounds} rounds ({_interval_text(best.interval)}): {vague}"
    return f"{name} ran at {best.speedup:.2f} times your rate in {rounds} rounds ({_interval_text(best.interval)})"


def _vague_text(result: Answer, speedup: float, interval: tuple[float, float] | None) -> str:
    """Return why an interval is wider than its speed-up, and who was busy unless it is said beside; empty if not."""
    if interval is None or interval[1] - interval[0] <= speedup:
        return ""
    busy = busy_text([trial for trial in result.history if trial.kind == "confirm"])
    if not busy:
        return "the rounds differ too much to tell"
    is_said = any(busy in what for what in result.missing)
    return "the machine was too busy to tell" + ("" if is_said else f" ({busy})")


def _few_rounds_text(ratios: Sequence[float]) -> str:
    faster = sum(ratio > 1 for ratio in ratios)
    if len(ratios) == 1:
        return f"{'faster' if faster else 'no faster'} in the one round"
    return f"faster in {faster} of the {len(ratios)} rounds"


def cause_text(finding: Finding) -> str:
    """Return a cause with its share of the time and its description."""
    share = "" if finding.share is None else f" ({percent(finding.share)} of the time)"
    return f"{finding.cause.replace('_', ' ')}{share}: {finding.what}"


def same_loss_pace(result: Answer) -> tuple[str, str] | None:
    """Return how many times as fast the same loss is reached with another batch, and the samples that it holds for."""
    if (interval := result.same_loss_speedup) is None or result.noise is None:
        return None
    low, high = (f"{end:.2g}" for end in interval)
    pace = f"{low} times" if low == high else f"{low} to {high} times"
    return pace, f"over your first {float(f'{result.noise.horizon:.2g}'):,.0f} samples"


def same_loss_text(result: Answer) -> str:
    """Return the samples that this holds for, in a sentence, or why it is not known; empty with the same batch."""
    if result.no_noise:
        return f"How much faster the same loss is reached is not known: {result.no_noise}."
    found = same_loss_pace(result)
    return f"The pace to the same loss was measured {found[1]}." if found else ""


HEADINGS = {"same-batch": "with your batch", "samples": "with any batch"}


def has_two_answers(result: Answer) -> bool:
    """Return whether the answer for the other objective is another configuration."""
    other = result.alternative
    return other is not None and other.config not in (result.config, other.baseline)


def answer_text(result: Answer) -> str:
    """Return the verdict; of two answers that of the one to take, under its heading."""
    found, name = verdict_sentence(result), HEADINGS[result.objective]
    if not has_two_answers(result):
        return found
    return f"{capital(name)}: {found}" if result.config == result.baseline else f"Take this, {name}: {found}"


def change_text(result: Answer) -> str:
    """Return what changes in training, and how well its cost is known; empty where nothing changes."""
    return " ".join(filter(None, (change_of_training(result.baseline, result.config), same_loss_text(result))))


def alternative_text(result: Answer) -> str:
    """Return the answer for the other objective in a line or two; empty where there is nothing to say."""
    other, name = result.alternative, HEADINGS["samples" if result.objective == "same-batch" else "same-batch"]
    if other is None:
        return f"{capital(name)}: {result.no_alternative}." if result.no_alternative else ""
    if other.config == result.config:
        return f"{capital(name)}: the same answer." if result.verdict is Verdict.FASTER else ""
    if other.config == other.baseline:
        return f"{capital(name)}: {verdict_sentence(other)}"
    notes = (capital(sentence(note)) for note in other.notes if note not in result.notes)
    way = f"Settings: {config_text(other.config)}; --objective {other.objective} takes them from the file."
    return " ".join(filter(None, (f"Or, {name}: {verdict_sentence(other)}", way, change_text(other), *notes)))


def in_python(text: str) -> str:
    """Return a text with flags of the command line as arguments of a function: ``--budget 5m`` is ``budget="5m"``."""
    return _FLAG.sub(_argument, text)


def _argument(flag: re.Match[str]) -> str:
    name, value = flag["name"].replace("-", "_"), flag["value"]
    return name if value is None else f'{name}="{value}"'


def sentence(text: str) -> str:
    """Return a text with a full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def printable(text: str) -> str:
    r"""Return a text with what would act on a terminal written out as in Python (``\x1b``); lines and tabs stay."""
    return "".join(_written_out(character) for character in text)


def _written_out(character: str) -> str:
    category = unicodedata.category(character)  # C: controls, marks, unassigned; Zl and Zp: line ends
    if character in "\n\t" or not (category.startswith("C") or category in ("Zl", "Zp")):
        return character
    return character.encode("unicode_escape").decode("ascii")


def tried_line(tried: TriedOption, is_used: bool) -> str:
    """Return the outcome of an option; ``is_used`` says that the answer has it."""
    if tried.gain is None:
        return f"{tried.option}: {tried.message.removeprefix(f'{tried.option} ')}."
    pace = "faster" if tried.gain >= 0 else "slower"
    found = f"{tried.option}: the step alone is {percent(abs(tried.gain))} {pace}{_memory_text(tried)}"
    if not tried.kept:
        return f"{found}; left out: {tried.message}."
    if not is_used:
        return f"{found}; left out: that training is faster with it was not confirmed."
    return f"{found}; used.{_repaid_text(tried)}"


def _memory_text(tried: TriedOption) -> str:
    change = tried.memory_change_bytes or 0
    if abs(change) < LEAST_CHANGE:
        return ""
    return f", with {format_size(abs(change))} {'more' if change > 0 else 'less'} memory"


def _repaid_text(tried: TriedOption) -> str:
    longer, repaid = tried.start_seconds, tried.repaid_seconds
    if longer is None or repaid is None or longer < LEAST_START:
        return ""
    what = "Compiling" if tried.option == "compile" else "The first step"
    return f" {what} takes {longer:.0f} s, repaid after {format_duration(repaid)} of training."
