"""The tables of settings and options: parsers, keywords, pyproject.toml, schema, files, tables and exports agree."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import export, load_config
from autotune.api import TuneOptions, tune
from autotune.cli import main
from autotune.config import Config
from autotune.configfile import SCHEMA
from autotune.errors import UsageError
from autotune.exports import TARGETS
from autotune.exports.target import OTHERWISE
from autotune.flags import MEASURING, OPTIONS, build_parser, parsers_of
from autotune.result import Verdict
from autotune.search.gp import coordinates
from autotune.settings import KNOBS, LARGEST, SETTINGS, SWITCH, Knob, KnobOptions, Setting
from autotune.step_options import OPTIONS as STEP_OPTIONS
from tests.simulated import SimulatedMachine, StepCost, few_of, gpu_facts, host, tuner_of

TEXTS = {"device": "cpu", "budget": "90s", "objective": "samples", "headroom": "20%", "max_memory": "1GiB"}
TEXTS |= {"baseline": "batch_size=8", "explore": "tf32", "sampler": "tpe"}
TEXTS |= {name: re.split(r",|\.\.", knob.example)[0] for name, knob in KNOBS.items()}
WRONG = {"budget": "1s", "headroom": "no", "max_memory": "no", "explore": "no", "objective": "no"}


def value_of(name: str) -> Any:
    option = OPTIONS[name]
    return True if option.placeholder is None else 2 if option.placeholder == "N" else TEXTS.get(name, "a.yaml")


def test_settings_are_the_fields_of_a_configuration_and_the_schema_is_made_of_them() -> None:
    beside = {"measured", "made_on", "alternatives", "unknown"}
    assert [field.name for field in fields(Config) if field.name not in beside] == list(SETTINGS)
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]
    for section in ("dataloader", "training", "threads"):
        of_section = {each.key: each for each in SETTINGS.values() if each.section == section}
        assert schema[section]["properties"] == {key: _schema_of(each) for key, each in of_section.items()}


def _schema_of(setting: Setting) -> dict[str, Any]:
    if setting.field == "options":
        kind: dict[str, Any] = {"type": "array", "items": {"enum": list(STEP_OPTIONS)}, "uniqueItems": True}
    elif setting.choices is SWITCH:
        kind = {"type": "boolean"}
    elif setting.choices is not None:
        kind = {"enum": [*setting.choices.values(), *([None] if setting.is_optional else [])]}
    else:
        number = ["integer", "null"] if setting.is_optional else "integer"
        kind = {"type": number, "minimum": setting.least, "maximum": LARGEST - 1}
    return {"description": setting.meaning, **kind}


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "options"])
def test_a_wrong_value_of_a_configuration_is_refused_by_name(name: str) -> None:
    setting = SETTINGS[name]
    wrong: list[Any] = [1, "no such"] if setting.choices else [(setting.least or 0) - 1, True, 1.0, "2", LARGEST]
    for value in [*wrong, *([] if setting.is_optional else [None])]:
        with pytest.raises(UsageError, match=f"^{name} is .*; allowed: "):
            Config(**{"num_workers": 1, name: value})


def test_options_are_the_flags_of_the_commands_that_measure_and_the_keywords_of_tune() -> None:
    parsers = parsers_of(build_parser())
    flags = {action.dest for name in MEASURING for action in parsers[name]._actions}
    assert flags - {"help", "version", "file", "patch", "ranks"} == OPTIONS.keys() - {"ranks"}
    keywords = {option.keyword for option in OPTIONS.values()} - {"", "dataset"}
    assert keywords | {"on_progress"} == TuneOptions.__annotations__.keys()
    assert [*KNOBS] == [*KnobOptions.__annotations__]
    for parser in parsers.values():
        for action in parser._actions:
            assert action.help
            is_said = any(word in action.help for word in ("such as", "(default", "one of")) or action.nargs == 0
            assert is_said or action.dest in ("module", "objective", "output"), action.dest


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_given_by_its_flag_or_in_pyproject_and_the_flag_comes_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    option, value = OPTIONS[name], value_of(name)
    known = parsers_of(build_parser())
    command = next(each for each in MEASURING if name in {action.dest for action in known[each]._actions})
    parser = known[command]
    line = {
        "tune": ["--model", "m:f"],
        "run": ["train.py"],
        "check": ["a.yaml", "--model", "m:f"],
        "compare": ["a.py", "b.py"],
    }
    rest = line.get(command, ["--model", "m:f"])
    given = [] if name == "model" else [option.flag] if value is True else [option.flag, str(value)]
    assert getattr(parser.parse_args([*given, *rest]), name) == ("m:f" if name == "model" else value)
    (tmp_path / "pyproject.toml").write_text(f"[tool.autotune]\n{name.replace('_', '-')} = {json.dumps(value)}\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    parser = parsers_of(build_parser())[command]
    parsed = parser.parse_args(rest if name != "model" else [])
    assert (getattr(parsed, name), parsed.taken) == (value, {name: value})
    if given and value is not True:
        other = "3" if option.placeholder == "N" else "other"
        parsed = parsers_of(build_parser())[command].parse_args([option.flag, other, *rest])
        assert (str(getattr(parsed, name)), parsed.taken) == (other, {})


@pytest.mark.parametrize("name", [option.name for option in OPTIONS.values() if option.keyword in WRONG])
def test_a_keyword_of_tune_is_read_as_its_flag(name: str) -> None:
    with pytest.raises(UsageError, match=OPTIONS[name].flag):
        tune("m:f", **{OPTIONS[name].keyword: WRONG[name]})  # type: ignore[misc]  # by name
    with pytest.raises(TypeError, match=f"tune.. got an unexpected keyword argument '{name}_': did you mean {name}"):
        tune("m:f", **{f"{name}_": 1})  # type: ignore[misc]  # as above


@pytest.mark.machine
def test_tune_takes_every_keyword(tmp_path: Path) -> None:
    values = {option.keyword: value_of(name) for name, option in OPTIONS.items() if option.keyword}
    values |= {"objective": "same-batch", "global_batch_size": 8, "storage": str(tmp_path / "a.study"), "amp": "off"}
    values |= {"batch_size": "8", "baseline": "batch_size=4", "pin_memory": "false", "dataset": "no_such_module:data"}
    with pytest.raises(UsageError, match="--model no_such_module: no module named"):
        tune("no_such_module:build", **values)


def test_pyproject_is_told_on_the_command_line_and_what_is_wrong_in_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "pyproject.toml"

    def said(content: str, line: str = "--model m:f") -> str:
        file.write_text(content)
        assert main(line.split()) in (2, 5)
        return capsys.readouterr().err

    head = "[tool.autotune]\n"
    both = said(f"{head}budget = '1s'\nnum-workers = [0, 2]\ndevice = 'cpu'\n", "run train.py")
    assert "From pyproject.toml: budget = 1s, num_workers = 0,2\n" in both
    assert "--budget 1s: too short" in both
    assert "tool.autotune.bugdet: unknown: did you mean budget?" in said(f"{head}bugdet = '2m'\n")
    assert "tool.autotune.quiet is 'yes'; allowed: true, false" in said(f"{head}quiet = 'yes'\n")
    assert "tool.autotune.trials is True; allowed: a text or a number" in said(f"{head}trials = true\n")
    assert "tool.autotune.amp is {'a': 1}; allowed: a text, a number, or a list of them" in said(f"{head}amp.a = 1\n")
    assert f"{file}: not a valid TOML file" in said(f"{head}amp = \n")
    assert "tool.autotune" not in said("[tool.other]\nbudget = 1\n", "--model m:f --budget 1s")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> str:
    """A knob that is added to the table: torch's threads between operators, a setting that the search leaves alone."""
    name, setting = "inter_op_threads", SETTINGS["inter_op_threads"]
    facets = {field.name: getattr(setting, field.name) for field in fields(Setting)}
    knob = Knob(
        **facets,
        placeholder="COUNTS",
        help="torch's threads between operators, such as 1,2",
        example="1,2",
        coordinate=lambda value, own_threads: float(value or 0),
        scales={"step": 1.0},
    )
    monkeypatch.setitem(SETTINGS, name, knob)
    monkeypatch.setitem(KNOBS, name, knob)
    return name


@pytest.mark.filterwarnings("ignore:.*was made with:UserWarning")  # a simulated machine
def test_a_knob_that_is_added_to_the_table_is_searched_written_loaded_and_exported(added: str, tmp_path: Path) -> None:
    facts = gpu_facts()
    space = few_of(facts, **{added: "1,2,4"}, num_workers=0, amp="off")
    assert {config.inter_op_threads for config in space.configs} == {1, 2, 4}
    points = np.hstack(coordinates(space.configs, 4))
    assert len({tuple(point) for point in points.tolist()}) == len(space.configs)

    def rate(config: Config) -> StepCost:
        return StepCost(wait=0.02 / (config.inter_op_threads or 1), compute=1e-4 * config.batch_size)

    result = tuner_of(SimulatedMachine(cost=rate), space, facts, host(8)).result()
    assert (result.verdict, result.config.inter_op_threads) == (Verdict.FASTER, 4)
    result.config.save(tmp_path / "a.yaml")
    loaded = load_config(tmp_path / "a.yaml")
    assert (loaded, loaded.inter_op_threads) == (result.config, 4)
    assert "torch.set_num_interop_threads(4)" in export(loaded, "python").text
    assert added in {gap.knob for gap in export(loaded, "lightning").gaps}
    assert result.trials[added].max() == 4


def test_every_tool_has_an_argument_for_a_setting_or_advice() -> None:
    for target in TARGETS.values():
        assert SETTINGS.keys() - {"options"} <= target.knows.keys() | target.advice.keys() | OTHERWISE.keys(), (
            target.name
        )
