from __future__ import annotations

import itertools
import json
import os
import re
import resource
import warnings
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import Config, load_config
from autotune.configfile import MAX_BYTES, read_document, write_document
from autotune.errors import ConfigFileError
from autotune.output import write_file
from autotune.settings import AMP_MODES
from autotune.step_options import OPTIONS
from tests.processes import run_python

HEAD = "autotune: 1\n"
LOADER = "dataloader: {batch_size: 8}\n"
VALID: dict[str, Any] = {
    "autotune": 1,
    "dataloader": {"batch_size": 8, "num_workers": 1, "pin_memory": True, "persistent_workers": True},
    "training": {"amp": "bf16", "accumulation_steps": 2},
    "threads": {"intra_op": 2, "inter_op": None},
    "measured": {
        "samples_per_second": 1234.5,
        "ci95": [1200.0, 1270.0],
        "peak_memory_bytes": 10**9,
        "memory": "device",
        "baseline": {"batch_size": 32, "amp": "off", "samples_per_second": 617.25},
        "speedup": 2.0,
        "verdict": "faster",
    },
    "made_on": {"device": "Example", "cpus": 4, "torch": "2.13.0", "driver": None, "date": "2025-01-31"},
}

COUNTS = st.integers(1, 2**63 - 1)
THREADS = st.none() | COUNTS
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBERS = st.floats(0, allow_nan=False, allow_infinity=False) | st.integers(0, 2**63 - 1)
INTERVALS = st.none() | st.lists(NUMBERS, min_size=2, max_size=2).map(sorted)
SCALARS = st.none() | st.booleans() | TEXTS | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    workers = draw(st.integers(0, 64))
    worker_options: dict[str, Any] = {}
    if workers:
        worker_options = {"prefetch_factor": draw(COUNTS), "persistent_workers": draw(st.booleans())}
    return Config(
        batch_size=draw(COUNTS),
        num_workers=workers,
        pin_memory=draw(st.booleans()),
        amp=draw(st.sampled_from(AMP_MODES)),
        accumulation_steps=draw(COUNTS),
        options=tuple(draw(st.sets(st.sampled_from(list(OPTIONS))))),
        intra_op_threads=draw(THREADS),
        inter_op_threads=draw(THREADS),
        measured=draw(st.none() | MEASURED),
        made_on=draw(st.none() | MADE_ON),
        **worker_options,
    )


MEASURED = st.fixed_dictionaries(
    {},
    optional={
        "samples_per_second": NUMBERS,
        "ci95": INTERVALS,
        "peak_memory_bytes": st.integers(0, 2**63 - 1),
        "bottleneck": TEXTS,
        "baseline": st.dictionaries(TEXTS, SCALARS.filter(lambda value: value not in (float("inf"), -float("inf")))),
        "beginning_samples": THREADS,
        "verdict": st.sampled_from(["faster", "no gain above 3 %", "undecided"]),
    },
)
MADE_ON = st.fixed_dictionaries(
    {}, optional={"device": TEXTS, "cpus": COUNTS, "torch": TEXTS, "driver": st.none() | TEXTS, "date": TEXTS}
)


def refusal(tmp_path: Path, content: str | bytes, name: str = "a.yaml") -> str:
    """The message with which a file of this content is refused, without its path."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigFileError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < 1000
    return message.removeprefix(f"{path}: ")


def load_quietly(path: Path) -> Config:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_config(path)


@given(config=configs(), name=st.sampled_from(["a.yaml", "a.json", "a.yml", "A.JSON"]))
def test_a_configuration_survives_the_file(config: Config, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        config.save(path)
        loaded = load_quietly(path)
        assert loaded == config
        assert (loaded.measured, loaded.made_on) == (config.measured, config.made_on)
        assert os.listdir(folder) == [name]


def test_yaml_and_json_carry_the_same_data_and_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    for name, parse in (("a.yaml", yaml.safe_load), ("a.json", json.loads)):
        write_document(tmp_path / name, VALID)
        assert read_document(tmp_path / name) == parse((tmp_path / name).read_text()) == VALID
        (tmp_path / name).write_text(json.dumps(VALID), encoding="utf-8-sig")
        assert read_document(tmp_path / name) == VALID


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none.yaml", r"none\.yaml: cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("/dev/zero", f"larger than {MAX_BYTES} bytes"),
        ("binary", "binary: not a text file in UTF-8"),
    ],
)
def test_a_file_that_is_missing_or_none_or_endless_is_named(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "binary").write_bytes(b"\x80\x81\xff")
    with pytest.raises(ConfigFileError, match=said):
        load_config(tmp_path / place)


NO_YAML = ["a: b: c", "{", "a: 'b", "\t- x", HEAD + "---\n" + HEAD, "a: *nowhere"]
NO_JSON = ["", "{", "{'a': 1}", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
NINE_TO_THE_TWENTIETH = "[&l0 [x], " + ", ".join(f"&l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 21)) + "]"
TWICE = '{"autotune": 1, "dataloader": {"batch_size": 8, "num_workers": 1, "batch_size": 9}}'
HURTFUL: list[str | bytes] = [
    '{"a":' * 10_000,
    HEAD + "measured: " + "{a: " * 10_000,
    HEAD + "measured: {baseline: " + "[" * 10_000 + "]" * 10_000 + "}",
    HEAD + "measured: {speedup: 1" + ":59" * 30_000 + "}",
    "\0" * 1000,
    json.dumps(VALID).encode("utf-16"),
    '{"autotune": 1, "dataloader": {"batch_size": 1e400}}',
    '{"autotune": 1, "dataloader": {"batch_size": "\\ud800"}}',
    *("!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "? 0x" + "f" * 5000, "2025-99-99"),
]
IN_YAML: list[tuple[str, str]] = [
    *((content, "^not a valid YAML file: ") for content in NO_YAML),
    *(
        (content, "^no key 'autotune'; this is not an autotune config file$")
        for content in ("", "- 1\n- 2\n", "text", "5", "null", "batch_size: 8\n", "# a comment\n")
    ),
    *(
        (
            f"autotune: {other}\n{LOADER}",
            r"^autotune: schema version .*this release reads version 1\. Run autotune again",
        )
        for other in ("2", "0", "true", "1.0", "'1'", "null", "[1]")
    ),
    (HEAD, "^no section 'dataloader'$"),
    *(
        (f"{HEAD}dataloader: {{{other}}}\n", "^dataloader.batch_size: missing; allowed: whole numbers from 1$")
        for other in ("", "batchsize: 8")
    ),
    *((f"{HEAD}dataloader: {no}\n", "^dataloader: is .*allowed: a section") for no in ("", "8", "[8]", "yes")),
    *(
        (f"{HEAD}{LOADER}alternatives: {{same-batch: {other}}}\n", said)
        for other, said in (
            ("5", "alternatives.same-batch: is 5; allowed: a section of sections"),
            ("{training: {amp: off}}", "alternatives.same-batch: no section 'dataloader'"),
            (
                "{dataloader: {batch_size: 8}, measured: {speedup: x}}",
                "measured.speedup: is 'x'; allowed: a number from 0",
            ),
            ("{dataloader: {batch_size: 8}, alternatives: {}}", "allowed: a section of sections"),
        )
    ),
    *(
        (f"{HEAD}{LOADER}{unknown}\n", "; allowed: ")
        for unknown in ("measured: {a: .nan}", "alternatives: {a: .nan}", "alternatives: [.inf]", "3: {a: 1}")
    ),
    *(
        (f"{HEAD}{LOADER}measured: {{baseline: {value}}}", "^not a valid YAML file: aliases are not allowed$")
        for value in (NINE_TO_THE_TWENTIETH, "&a [*a]", "{x: &a 1, <<: &b {y: *a}}")
    ),
]
IN_JSON: list[tuple[str, str]] = [
    *((content, "^not a valid JSON file: ") for content in NO_JSON),
    *(
        (f'{{"autotune": 1, "dataloader": {{"batch_size": 8}}, {more}}}', said)
        for more, said in (
            *(
                (f'"measured": {{"speedup": {n}}}', "^measured.speedup: is ")
                for n in ("NaN", "-Infinity", "1" + "0" * 400)
            ),
            ('"training": {"amp": false}', "^amp is False; allowed: off, bf16, fp16"),
        )
    ),
]
IN_BOTH = [(TWICE, "file: batch_size is given twice$"), *((content, "") for content in HURTFUL)]
REFUSED = [("a.yaml", *row) for row in (*IN_YAML, *IN_BOTH)] + [("a.json", *row) for row in (*IN_JSON, *IN_BOTH)]


@pytest.mark.parametrize(("name", "content", "said"), REFUSED, ids=itertools.count())
def test_what_no_config_file_holds_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str | bytes, said: str
) -> None:
    assert re.search(said, refusal(tmp_path, content, name))


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_what_a_later_release_may_have_written_is_kept_and_warned_of(tmp_path: Path, name: str) -> None:
    document = {
        "autotune": 1,
        "dataloader": {"batch_size": 8, "in_order": False},
        "measured": {"verdict": "faster", "joules_per_sample": 0.5},
        "energy": {"idle": {"watts": 8}},
        "alternatives": {"cheapest": {"workers": 8}},
    }
    path = tmp_path / name
    path.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="unknown to this release") as caught:
        config = load_config(path)
    named = [str(each.message).split(": ")[1] for each in caught]
    assert sorted(named) == ["alternatives.cheapest", "dataloader.in_order", "energy", "measured.joules_per_sample"]
    assert "in_order" not in config.dataloader_kwargs()
    config.save(path)
    kept = read_document(path)
    assert kept["dataloader"]["in_order"] is False
    assert kept["measured"] == document["measured"]
    assert kept["energy"] == document["energy"]
    assert kept["alternatives"] == document["alternatives"]


ALTERNATIVES = """
measured: {objective: samples}
made_on: {threads: 2}
alternatives:
  same-batch:
    dataloader: {batch_size: 32, num_workers: 2, prefetch_factor: 4}
    training: {amp: off, accumulation_steps: 1}
    measured: {objective: same-batch, speedup: 1.5}
"""


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_the_answers_for_both_objectives_are_in_a_file_and_read_by_their_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / "written.yaml"
    path.write_text(HEAD + "dataloader: {batch_size: 512}\n" + ALTERNATIVES)
    load_config(path).save(tmp_path / name)
    config = load_config(tmp_path / name)
    other = load_config(tmp_path / name, "same-batch")
    assert load_config(tmp_path / name, "samples") == config
    assert (config.batch_size, other.batch_size, other.prefetch_factor, other.amp) == (512, 32, 4, "off")
    assert other.measured == {"objective": "same-batch", "speedup": 1.5}
    assert other.made_on == config.made_on == {"threads": 2}
    assert config.alternatives == {"same-batch": other}
    bare = ALTERNATIVES.replace("made_on: {threads: 2}\n", "")
    path.write_text(HEAD + "dataloader: {batch_size: 512}\n" + bare)
    assert load_config(path, "same-batch") == other
    with pytest.raises(ConfigFileError, match="no answer for 'cheapest'; there is same-batch and samples"):
        load_config(tmp_path / name, "cheapest")


@pytest.mark.parametrize("objective", ["3", "[samples]", "{samples: 1}", "true", "1.5"])
def test_an_objective_that_is_no_text_is_refused_whichever_answer_is_asked_for(tmp_path: Path, objective: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(HEAD + LOADER + f"measured: {{objective: {objective}}}\n")
    for asked in (None, "samples"):
        with pytest.raises(ConfigFileError, match=r"measured\.objective: is .*; allowed: a text, or null"):
            load_config(path, asked)


WRONG_VALUES = {
    "dataloader.batch_size": ["0", "true", "8.0", "'8'", "[8]", "null", str(2**63), "0x" + "f" * 5000, "x" * 5000],
    "training.amp": ["fp8", "true", "[off]"],
    "training.options": ["null", "[turbo]", "[3]", "[[compile]]"],
    "measured.samples_per_second": [".nan", ".inf", "-1", "true", "9" * 400, "null"],
    "measured.ci95": ["[2, 1]", "[1]", "[1, .nan]"],
    "measured.baseline": ["{rate: .inf}", "{1: 2}", "{date: 2025-01-31}", "3"],
    "measured.learning_rate": ["{factor: -1}", "{rule: cubic}", "{optimizer: 'A B'}", "4", "{samples: 1.5}"],
    "measured.beginning_samples": ["0", "-1", "7.5", "true", "many", "[1]", "9223372036854775808"],
    "made_on.date": ["2025-01-31"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values])
def test_a_wrong_value_is_refused_by_key_with_what_is_allowed(tmp_path: Path, key: str, value: str) -> None:
    section, _, name = key.partition(".")
    document: dict[str, str] = {"dataloader": "batch_size: 8"} if name != "batch_size" else {}
    document[section] = ", ".join(filter(None, (document.get(section), f"{name}: {value}")))
    content = "".join(f"{section}: {{{keys}}}\n" for section, keys in document.items())
    message = refusal(tmp_path, HEAD + content)
    assert message.startswith((name, f"{key}: is "))
    assert "; allowed: " in message


@pytest.mark.parametrize("off", ["off", "Off", "no", "false", "'off'", '"off"'])
def test_amp_off_needs_no_quotes_in_yaml(tmp_path: Path, off: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{HEAD}{LOADER}training: {{amp: {off}}}\n")
    assert load_config(tmp_path / "a.yaml").amp == "off"


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.mkdir [%s]", "!!python/object/new:os.mkdir [%s]", "!!python/name:os.mkdir"]
)
def test_python_tags_are_refused_without_running(tmp_path: Path, tag: str) -> None:
    made = tmp_path / "made"
    content = HEAD + LOADER + "measured: " + (tag % made if "%s" in tag else tag) + "\n"
    assert refusal(tmp_path, content).startswith("not a valid YAML file: could not determine a constructor")
    assert not made.exists()


@pytest.mark.parametrize("place", ["missing/a.yaml", "file/a.yaml", "directory"])
def test_what_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigFileError, match=rf"{place}: cannot be written: \w+"):
        Config().save(tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_fills_up_keeps_the_old_file_whole_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    old = Config(batch_size=7)
    old.save(path)
    code = (
        "import resource, sys; from autotune.config import Config; import yaml\n"
        "from autotune.errors import ConfigFileError\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (10, {resource.RLIM_INFINITY}))\n"
        "try: Config().save(sys.argv[1])\n"
        "except ConfigFileError as error: print(error)"
    )
    assert run_python("-B", "-c", code, path).stdout.strip() == f"{path}: cannot be written: File too large"
    assert load_config(path) == old
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_neither_text_that_is_no_unicode_nor_an_interrupt_while_writing_leaves_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(ConfigFileError, match=r"cannot be written: .*surrogates not allowed"):
        write_file(tmp_path / "a.html", "\ud800")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "a.txt", "text")
    assert os.listdir(tmp_path) == []


def test_a_written_file_replaces_the_old_one_and_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    for text in ("old and long", "new"):
        write_file(tmp_path / "a.txt", text)
        assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert (tmp_path / "a.txt").read_text() == "new"


UNREADABLE = [
    *({"samples_per_second": float("nan")}, {"speedup": float("inf")}, {"speedup": object()}),
    *({"baseline": {"set": {1}}}, {"ci95": [2.0, 1.0]}),
]


@pytest.mark.parametrize("measured", UNREADABLE)
@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, name: str, measured: dict[str, Any]) -> None:
    with pytest.raises(ConfigFileError):
        Config(measured=measured).save(tmp_path / name)
    assert os.listdir(tmp_path) == []


class Verdict(StrEnum):
    FASTER = "faster"


def test_enumerations_tuples_and_shared_lists_are_written_as_plain_values(tmp_path: Path) -> None:
    interval = [1.0, 2.0]
    measured = {"verdict": Verdict.FASTER, "ci95": interval, "speedup_ci95": interval, "next_run_95": (1.0, 2.0)}
    Config(measured=measured).save(tmp_path / "a.yaml")
    text = (tmp_path / "a.yaml").read_text()
    assert "&" not in text
    assert "!" not in text
    assert load_config(tmp_path / "a.yaml").measured == measured | {"next_run_95": interval}


def test_the_yaml_file_has_one_line_for_each_short_section(tmp_path: Path) -> None:
    Config(batch_size=8).save(tmp_path / "a.yaml")
    assert (tmp_path / "a.yaml").read_text().splitlines() == [
        "autotune: 1",
        "dataloader: {batch_size: 8, num_workers: 0, pin_memory: false}",
        "training: {amp: 'off', accumulation_steps: 1}",
        "threads: {intra_op: null, inter_op: null}",
    ]


# --- where there is nothing but torch ---

ALONE = """
import sys
for name in ("optuna", "pandas", "pynvml", "psutil", "rich", "cloudpickle", "yaml"):
    sys.modules[name] = None
import autotune
config = autotune.load_config("a.json")
config.apply_threads()
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulator = config.accumulator(optimizer, "cpu")
for (batch,) in config.dataloader(torch.utils.data.TensorDataset(torch.ones(8, 1))):
    with config.autocast("cpu"):
        loss = model(batch).mean()
    accumulator.backward(loss, len(batch))
    accumulator.step()
print(autotune.export(config, "lightning").values["Trainer"]["precision"], len(batch))
try:
    autotune.load_config("a.yaml")
except autotune.AutotuneError as error:
    print(error)
"""


@pytest.mark.machine
def test_a_training_script_needs_nothing_but_torch(tmp_path: Path) -> None:
    for name in ("a.json", "a.yaml"):
        Config(batch_size=4, num_workers=1, amp="bf16", accumulation_steps=2).save(tmp_path / name)
    done = run_python("-c", ALONE, folder=tmp_path)
    assert done.stdout.splitlines() == [
        "bf16-mixed 4",
        "a.yaml: YAML needs pyyaml (pip install pyyaml); a .json file does not",
    ], done.stderr
