from __future__ import annotations

import io
import re
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from autotune.config import Config, change_of_training
from autotune.messages import Progress
from autotune.outcome import Outcome
from autotune.records import Attempt, Part, Probe, StepTime
from autotune.report import terminal
from autotune.report.terminal import (
    TIMES,
    LiveProgress,
    PlainProgress,
    comparison_table,
    ending,
    message_line,
    probe_line,
    status,
    summary,
    trial_line,
)
from autotune.report.text import before_after, config_text, in_python, printable, verdict_sentence
from autotune.result import Landscape, StepForecast, TriedOption
from tests import examples
from tests.datasets import Squares
from tests.search.there import there

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.report.result import Result

DOCS = Path(__file__).parents[2] / "docs"
OPTIONED = Config(batch_size=64, options=("channels_last", "compile"))
DEVICE = examples.device_measurement()
RESULTS = [
    examples.faster_result(),
    examples.faster_result(measurement=DEVICE, baseline_measurement=DEVICE),
    examples.faster_result(speedup_ci95=None, ci95=None, history=(), remaining_gain=float("inf")),
    examples.no_gain_result(),
    examples.no_gain_result(measurement=DEVICE),
]


def shown(renderable: RenderableType, width: int = 80, color: str | None = None) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=color is not None, color_system=color, highlight=False
    )  # type: ignore[arg-type]
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def rows(result: Result) -> dict[str, list[str]]:
    lines = shown(comparison_table(before_after(result)), width=120).splitlines()[1:]
    cells = [re.split(r" {2,}", line.strip()) for line in lines]
    return {heading: values for heading, *values in cells}


@pytest.mark.parametrize("result", RESULTS)
def test_a_summary_fits_its_width_and_cuts_nothing_and_a_result_prints_as_it(result: Result) -> None:
    use = ["Use it:  python -m autotune export autotune.yaml --to python"] if result.config != result.baseline else []
    last = ["Written: autotune.yaml", *use, "See it:  python -m autotune report a.study"]
    for width in (80, 120):
        text = shown(summary(result), width) + shown(ending(result, "autotune.yaml", ["a.study"]), width)
        lines = text.splitlines()
        assert max(map(cell_len, lines)) <= width
        assert not any("…" in line for line in lines)
        assert lines[-len(last) - 1 :][1:] == last
        assert ("Use it" in text) == bool(use)
    assert str(result).rstrip().endswith(".")
    assert verdict_sentence(result) in " ".join(str(result).split())
    assert max(map(len, str(result).splitlines())) <= 100
    assert repr(result) == f"<Result: {verdict_sentence(result)}>"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 1024, "amp": "bf16"}, "batch size 32 → 1024, bf16: adapt the learning rate."),
        ({"batch_size": 8, "accumulation_steps": 4, "num_workers": 2}, ""),
        ({"ranks": 2}, "batch size 32 → 64: adapt the learning rate."),
        ({"amp": "fp16"}, "fp16."),
        ({"options": ("tf32", "channels_last")}, "tf32."),
        ({"options": ("channels_last",), "intra_op_threads": 2}, ""),
    ],
)
def test_what_changes_training_is_said_where_the_answer_is(changes: dict[str, Any], said: str) -> None:
    result = examples.faster_result(config=Config(**changes))
    line = f"This changes training: {said}" if said else ""
    assert change_of_training(result.baseline, result.config) == line
    assert ("This changes training" in shown(ending(result), width=200)) == bool(said)
    assert line in shown(ending(result), width=200)


def test_the_option_that_gives_a_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("options.py").write_text('parser.add_argument("-j", "--loader-workers", type=int, help="each a process")\n')
    call = "loader = DataLoader(data, num_workers=args.loader_workers)"
    Path("train.py").write_text(f"from torch.utils.data import DataLoader\n{call}\n")
    config = Config(batch_size=32, num_workers=3, made_on={"loader": "train.py:2 Data[64]"})
    result = examples.faster_result(config=config)
    result = replace(result, facts=replace(result.facts, loader_call="train.py:2: DataLoader"))
    text = shown(ending(result, script=("train.py", "--epochs", "9")), width=300)
    assert "Change:  train.py:2: num_workers=args.loader_workers comes from the command line" in text
    assert "--loader-workers 3\n" in text
    Path("train.py").write_text(Path("train.py").read_text().replace("args.loader_workers", "0"))
    text = shown(ending(result, script=("train.py",)), width=300)
    assert "Change:  train.py:2: DataLoader(..., batch_size=32, num_workers=3)\n" in text


def test_without_colour_there_are_no_escape_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in shown(summary(RESULTS[0])) + shown(trial_line(examples.failed_trial(), 1.0))
    assert "\x1b[36m" in shown(summary(RESULTS[0]), color="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in shown(summary(RESULTS[0]), color="standard")


def test_only_parts_that_take_time_have_a_row_and_memory_is_that_of_the_device() -> None:
    assert "copy to device" not in rows(examples.no_gain_result())
    assert rows(examples.no_gain_result(measurement=DEVICE))["copy to device"] == ["4 %"]
    assert "24.0 of 80.0 GiB device" in shown(summary(examples.no_gain_result(measurement=DEVICE)))
    nothing = StepTime(data_wait=0.0, host_to_device=0.0, forward=0.0, backward=0.0, optimizer=0.0, other=0.0)
    table = rows(examples.no_gain_result(measurement=examples.measurement(step_time=nothing)))
    assert table["time per step"] == ["0 ms"]
    assert "backward" not in table


def test_the_verdict_counts_the_confirmed_rounds_and_no_gain_has_its_limit_and_what_was_compared() -> None:
    assert verdict_sentence(examples.faster_result()) == (
        "2.31 times the samples a second: 95 % interval 2.18 to 2.45, confirmed in 3 rounds of fresh processes."
    )
    assert "confirmed in 2 rounds" in verdict_sentence(examples.faster_result(rounds=2))
    stream = replace(examples.faster_result().baseline_measurement, beginning_samples=9600)
    assert verdict_sentence(examples.faster_result(baseline_measurement=stream)).endswith(
        "in 3 rounds of fresh processes, for the first 9,600 samples of an epoch."
    )
    assert verdict_sentence(examples.no_gain_result()) == (
        f"No gain above 3 %: keep your settings. The best other configuration, {config_text(examples.ANSWER)}, ran at "
        "1.00 times your rate in 8 rounds (95 % interval 0.98 to 1.03)."
    )


def test_an_interval_wider_than_its_middle_is_told_with_who_was_busy_once() -> None:
    busy = examples.conditions(is_crowded=True, foreign_cpus=1.4, neighbours=("make (pid 7) 1.4",), named_cpus=1.4)
    who = "other processes used 1.4 of 2 CPUs meanwhile, most of it make (pid 7) 1.4"
    attempt = Attempt(outcome=Outcome.SUSPECT, payload=examples.measurement(conditions=busy))
    beside = tuple(examples.trial(number=n, kind="confirm", attempt=attempt) for n in range(10, 30))
    wide = {"speedup": 0.83, "interval": (0.0, 3.11), "ratios": (0.8,) * 4}
    own = examples.undecided_result()
    undecided = replace(own, config=own.baseline, likeliest=replace(there(own.likeliest), **wide), missing=())
    told = f"Undecided: the best other configuration, {config_text(examples.ANSWER)}, was measured in 4 rounds "
    assert verdict_sentence(undecided) == (
        f"{told}(95 % interval 0.00 to 3.11): the rounds differ too much to tell; keep your settings for now."
    )
    crowded = replace(undecided, history=(*undecided.history, *beside))
    assert f"the machine was too busy to tell ({who}); keep your settings" in verdict_sentence(crowded)
    known = replace(crowded, missing=(f"a quieter machine ({who})",))
    assert verdict_sentence(known) == (
        f"{told}(95 % interval 0.00 to 3.11): the machine was too busy to tell; keep your settings for now. "
        f"A quieter machine ({who}) would decide it."
    )
    faster = replace(examples.faster_result(), speedup_ci95=(1.11, 3.9))
    assert verdict_sentence(faster).endswith("; how much faster is open: the rounds differ too much to tell.")


def test_an_undecided_verdict_says_the_estimate_and_the_way_to_a_proof() -> None:
    machine = "a quieter machine (other processes used 1.1 of 2 CPUs meanwhile)"
    missing = f"More time (--budget 1m) and {machine} would"
    undecided = examples.undecided_result()
    likely = "Probably about 2.3 times the samples a second: 3 rounds, no proof yet; 95 % interval 0.97 to 3.10"
    assert verdict_sentence(undecided) == f"{likely}. {missing} prove it."
    assert verdict_sentence(replace(undecided, speedup=1.134, missing=())) == (
        "Probably about 1.13 times the samples a second: 3 rounds, no proof yet; 95 % interval 0.97 to 3.10, so the "
        "rounds differ too much to tell."
    )
    best = f"Undecided: the best other configuration, {config_text(examples.ANSWER)},"
    assert verdict_sentence(replace(undecided, config=undecided.baseline)) == (
        f"{best} ran at 2.31 times your rate in 3 rounds (95 % interval 0.97 to 3.10); keep your settings for now. "
        f"{missing} decide it."
    )
    for ratios, told in (
        ((60.0,), "faster in the one round"),
        ((0.9,), "no faster in the one round"),
        ((60.0, 0.9), "faster in 1 of the 2 rounds"),
    ):
        few = replace(there(undecided.likeliest), interval=None, ratios=ratios)
        assert verdict_sentence(replace(undecided, config=undecided.baseline, likeliest=few, missing=())) == (
            f"{best} was {told} that there was time for; keep your settings for now."
        )
    nothing = verdict_sentence(
        examples.undecided_result(config=undecided.baseline, likeliest=None, missing=("more time (--budget 1m)",))
    )
    assert nothing == (
        "Undecided: nothing ran beside your settings, so keep them for now. More time (--budget 1m) would decide it."
    )


ALONE = "A perfect data loader would gain at most 4 % with 1 of 2 threads"
OTHERS = "; with another batch size, precision or thread count"
NOT_KNOWN = f"{OTHERS} the limit is unknown"


STEPS = (StepForecast(batch_size=128, amp="bf16", ceiling=3000.0, rate=2900.0, refusal=None),)
EXPECTED = Landscape(steps=STEPS, loaders=(), memory_bytes=2**30)
SLOW = examples.measurement(samples_per_second=10.0, ceiling_samples_per_second=3557.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"remaining_gain": 0.0}, f"{ALONE}."),
        ({"remaining_gain": 0.98}, f"{ALONE}{OTHERS} at most 98 %."),
        ({"remaining_gain": 354.75}, f"{ALONE}{NOT_KNOWN}."),
        ({"remaining_gain": inf}, f"{ALONE}{NOT_KNOWN}."),
        (
            {"remaining_gain": 1.5, "landscape": EXPECTED},  # beyond any step's, whose batch and precision are fixed
            f"{ALONE}; with another thread count the limit is unknown.",
        ),
        ({"config": examples.BASELINE}, "A perfect data loader would gain at most 4 %"),
        ({"measurement": SLOW}, "would gain at most 355 times with 1 of 2 threads."),  # no percentage of five digits
    ],
)
def test_what_is_left_is_said_of_the_step_itself_and_of_others_as_far_as_it_is_known(
    changes: dict[str, Any], said: str
) -> None:
    assert said in shown(summary(examples.faster_result(**changes)), width=200)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (examples.ANSWER, f"batch 128 · workers 2{TIMES}2 · pin · bf16 · threads 1"),
        (Config(), "batch 32 · no workers · fp32"),
        (Config(num_workers=4), f"batch 32 · workers 4{TIMES}2 · not persistent · fp32"),
        (Config(amp="fp16", accumulation_steps=4), "batch 32 · no workers · fp16 · accumulate 4"),
        (Config(intra_op_threads=4, inter_op_threads=1), "batch 32 · no workers · fp32 · threads 4+1"),
        (Config(inter_op_threads=1), "batch 32 · no workers · fp32 · threads auto+1"),
    ],
)
def test_a_configuration_in_short_form_leaves_defaults_out(config: Config, text: str) -> None:
    assert config_text(config) == text


def test_a_trial_line_says_outcome_rate_ratio_and_configuration() -> None:
    numbers = examples.measurement(samples_per_second=2469.0)
    fast = examples.trial(number=7, kind="model", config=examples.ANSWER, measurement=numbers)
    line = trial_line(fast, 1234.5).plain
    assert line.split()[:4] == ["7", "ok", "2,469/s", f"2.00{TIMES}"]
    assert line.endswith(config_text(examples.ANSWER))
    assert cell_len(line) <= 80
    assert TIMES not in trial_line(examples.trial(), None).plain  # no baseline, no ratio


@pytest.mark.parametrize("kind", ["baseline", "confirm"])
def test_the_mark_of_a_confirmation_is_never_cut(kind: Any) -> None:
    console = Console(file=io.StringIO(), width=40, highlight=False)
    LiveProgress(console)(Progress(phase="confirm", finished=examples.trial(kind=kind), baseline_rate=1.0))
    assert console.file.getvalue().split()[1] == kind  # type: ignore[attr-defined]


MESSAGE = "CUDA out of memory. Tried to allocate 20.00 GiB"


def test_a_failed_trial_has_its_message_on_its_line_in_a_log_and_below_its_configuration_on_a_terminal() -> None:
    progress, texts = Progress(phase="search", finished=examples.failed_trial(), baseline_rate=1234.5), []
    for display in (PlainProgress, LiveProgress):
        console = Console(file=io.StringIO(), width=80, highlight=False)
        display(console)(progress)
        texts.append(console.file.getvalue())  # type: ignore[attr-defined]
    plain, live = texts
    assert plain.split()[:2] == ["4", "device_oom"]
    assert "batch 2048" in plain
    assert plain.endswith(f": {MESSAGE}\n")
    first, second = live.rstrip().splitlines()
    assert second.rstrip() == f"{first.index('batch') * ' '}{MESSAGE}"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {"phase": "search", "running": examples.ANSWER, "best_rate": 2469.0, "baseline_rate": 1234.5},
            (
                f"searching · trial 7 · {config_text(examples.ANSWER)}\n"
                f"last 987/s · best 2,469/s (2.00{TIMES} the baseline) · 1m12s of the budget left"
            ),
        ),
        ({"phase": "inspect"}, "inspecting\nlast 987/s · 1m12s of the budget left"),
    ],
)
def test_the_status_says_what_runs_and_how_it_stands(changes: dict[str, Any], wanted: str) -> None:
    progress = Progress(seconds_left=90.0, **changes)
    assert status(progress, number=7, last_rate=987.0, seconds_left=72.0).plain == wanted


def test_the_live_display_counts_down_and_numbers_the_running_trial() -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), width=80, highlight=False)
    display = LiveProgress(console, clock=lambda: now[0])
    display(Progress(phase="search", seconds_left=60.0, finished=examples.failed_trial(), baseline_rate=1.0))
    display(Progress(phase="search", seconds_left=50.0, running=examples.ANSWER))
    now[0] = 8.0
    foot = shown(display.render())
    assert "trial 5" in foot
    assert "42s of the budget left" in foot
    assert "device_oom" in console.file.getvalue()  # type: ignore[attr-defined]
    display = LiveProgress(Console(file=io.StringIO(), width=40))  # cuts the status, and keeps its two lines
    display(Progress(phase="search", seconds_left=50.0, running=examples.ANSWER, best_rate=2.0, baseline_rate=1.0))
    assert len(shown(display.render(), width=40).splitlines()) == 2


PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("settings.md", "config-file.md")}
(DOCUMENTED,) = re.findall(r"```python\n(import autotune\n[^`]*flush[^`]*)```", PAGES["config-file.md"])


def test_the_documentations_loop_trains_with_the_file_that_it_names_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, model = Config(batch_size=4, accumulation_steps=3, amp="bf16"), torch.nn.Linear(1, 1)
    config.save("autotune.yaml")
    before, optimizer = model.weight.clone(), torch.optim.SGD(model.parameters(), lr=1e-6)
    sizes, dtypes, steps = list[int](), set(), list[object]()
    optimizer.register_step_post_hook(lambda *given: steps.append(given))

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        sizes.append(len(output))
        dtypes.add(output.dtype)
        return torch.nn.functional.mse_loss(output.float(), batch[1])

    names = {"dataset": Squares(50), "model": model, "optimizer": optimizer, "device": "cpu", "epochs": 1}
    exec(DOCUMENTED, names := names | {"training_step": training_step})
    assert names["config"] == config
    assert sizes == [4] * 12 + [2]
    assert len(steps) == 5  # four of three batches, and what is left
    assert dtypes == {torch.bfloat16}
    assert not torch.equal(model.weight, before)
    assert all(DOCUMENTED[DOCUMENTED.index("for epoch in") :].rstrip() in page for page in PAGES.values())


def look(part: Part, config: Config, payload: Any = None, outcome: Outcome = Outcome.OK, message: str = "") -> Probe:
    return Probe(part=part, config=config, attempt=Attempt(outcome=outcome, payload=payload, message=message))


OVERFLOWS = "in fp16 gradients overflow"
LOOKS = {
    "numerics fp32 · channels_last · compile trains like fp32 over 20 steps": look(
        "numerics", OPTIONED, examples.numerics_check()
    ),
    "60 ms for a worker to build a batch of 32": look("loader", Config(), examples.loader_trace()),
    "3,200/s at most, 0.50 GiB:  batch 32 · fp32": look("compute", Config(), examples.compute_probe()),
    "3,200/s at least, 0.50 GiB:  batch 32 · fp32; others took 40 % meanwhile": look(
        "compute", Config(), examples.compute_probe(taken_share=0.4)
    ),
    "bf16 trains like fp32 over 20 steps": look("numerics", Config(amp="bf16"), examples.numerics_check()),
    OVERFLOWS: look("numerics", Config(amp="fp16"), examples.numerics_check(settles=False), message=OVERFLOWS),
    "device_oom batch 4096 · fp32: too large": look(
        "compute", Config(batch_size=4096), outcome=Outcome.DEVICE_OOM, message="too\nlarge"
    ),
}


@pytest.mark.parametrize(("expected", "probe"), LOOKS.items())
def test_a_look_is_one_line_that_says_what_was_found(expected: str, probe: Probe) -> None:
    line = probe_line(probe).plain
    assert expected in line
    assert "\n" not in line


UNCONFIRMED = "that training is faster with it was not confirmed"


def test_options_and_threads_are_shown() -> None:
    assert config_text(OPTIONED) == "batch 64 · no workers · fp32 · channels_last · compile"
    result = examples.faster_result(config=OPTIONED)
    assert rows(result)["options"] == ["none", "channels_last, compile"]
    assert "options" not in rows(examples.faster_result())
    assert rows(examples.faster_result())["threads"] == ["torch's own choice", "1"]


def test_the_summary_has_a_line_for_every_option_that_was_tried() -> None:
    tried = (
        TriedOption(option="channels_last", kept=True, gain=0.051, memory_change_bytes=-(2**28)),
        TriedOption(option="tf32", kept=False, message="tf32 does not apply here: the model is on cpu; leave it out"),
        TriedOption(option="fused_optimizer", kept=True, gain=0.03),
        TriedOption(option="checkpointing", kept=False, gain=-0.2, message="the step is not 2 % faster with it"),
        TriedOption(option="compile", kept=True, gain=0.3, start_seconds=12.0),
    )
    text = shown(summary(examples.faster_result(config=OPTIONED, tried=tried)), width=200)
    lines = [line[len("Option") :].strip() for line in text.splitlines() if line.startswith("Option")]
    assert lines == [
        "channels_last: the step alone is 5 % faster, with 256 MiB less memory; used.",
        "tf32: does not apply here: the model is on cpu; leave it out.",
        f"fused_optimizer: the step alone is 3 % faster; left out: {UNCONFIRMED}.",
        "checkpointing: the step alone is 20 % slower; left out: the step is not 2 % faster with it.",
        "compile: the step alone is 30 % faster; used. Compiling takes 12 s, repaid after 40s of training.",
    ]


# What is printed of the user's texts.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Net [bold]\n\tüber 10 µs 日本", "Net [bold]\n\tüber 10 µs 日本"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\x9b2J\x7f", r"a\rb\x9b2J\x7f"),
        ("file\u202egnp.yaml", r"file\u202egnp.yaml"),
        ("a\u2028b\udc80", r"a\u2028b\udc80"),
    ],
)
def test_what_would_act_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_every_text_can_be_printed_and_nothing_is_hidden(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(character.isprintable() or character.isspace() for character in shown)
    assert printable(shown) == shown


# Diagnoses.


def diagnosed(width: int = 80, **changes: object) -> str:
    return shown(terminal.diagnosis_report(examples.diagnosis(**changes)), width)


def test_the_limit_comes_first_with_its_share_its_evidence_and_what_to_do() -> None:
    limit, besides = diagnosed(width=120).split("Worth knowing")
    assert "1. decoding (62 % of the time): training waits for data: building a batch takes CPU time\n" in limit
    assert "   · 70 % in data.py:7 decode\n" in limit
    assert "   To do: more workers; do less for each sample\n" in limit
    assert "1. dataset copies: the dataset consists of many Python objects\n" in besides


def test_brackets_in_names_are_no_markup() -> None:
    odd = replace(examples.LATE_LOADER, what="[bold]x[/bold]", evidence=("[red]y",), advice="[z]")
    text = diagnosed(findings=(odd,))
    assert all(part in text for part in ("[bold]x[/bold]", "[red]y", "[z]"))


@pytest.mark.parametrize(
    ("rate", "interval", "text"),
    [
        (283.4, (36.0, 520.0), "about 300 (36 to 520)"),
        (0.0432, (0.0, 0.09), "about 0.04 (0 to 0.09)"),
        (283.4, (250.0, 310.0), "283 (250 to 310)"),
        (283.4, None, "283"),
    ],
)
def test_a_rate_that_is_hardly_known_has_one_digit(rate: float, interval: Any, text: str) -> None:
    rows = before_after(examples.faster_result(samples_per_second=rate, ci95=interval)).rows
    assert text in next(row.cells for row in rows if row.name.startswith("samples/s"))


@pytest.mark.parametrize(
    ("said", "in_code"),
    [
        ("More time (--budget 5m) would decide it", 'More time (budget="5m") would decide it'),
        ("(--objective samples, or --batch-size 32..256)", '(objective="samples", or batch_size="32..256")'),
        ("--amp off,bf16 compares losses", 'amp="off,bf16" compares losses'),
        ("pass --ranks 2, and train", 'pass ranks="2", and train'),
        ("give a larger --budget.", "give a larger budget."),
        ("--num-workers limits it", "num_workers limits it"),
        ("one - two -- three, a--b", "one - two -- three, a--b"),
    ],
)
def test_a_function_is_told_of_its_arguments_not_of_flags(said: str, in_code: str) -> None:
    assert in_python(said) == in_code


def test_a_message_begins_with_a_capital_but_for_the_name_of_a_file() -> None:
    assert message_line("autotune.study was made with 4 CPUs").plain == "autotune.study was made with 4 CPUs."
    assert message_line("jobs/train: gone").plain == "jobs/train: gone."
    assert message_line("waiting for it.").plain == "Waiting for it."


def test_a_result_in_python_speaks_of_arguments() -> None:
    undecided = examples.undecided_result(missing=("more time (--budget 5m)",))
    for shown in (str(undecided), repr(undecided), undecided._repr_html_()):
        assert "--budget" not in shown
        assert 'budget="5m"' in shown
