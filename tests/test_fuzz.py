"""Config files and studies that nobody wrote by hand: whatever is in them, there is one kind of error."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import load_config
from autotune.errors import ConfigFileError, StorageError
from autotune.records import Request
from autotune.search.setup import Setup
from autotune.search.study import open_study
from autotune.storage.open import StudyStorage
from tests.simulated import SimulatedMachine, few_of, gpu_facts, host, loader_bound
from tests.test_configfile import VALID

NUMBERS = [
    *("9" * 400, "-1", "1e999", "-.inf", ".nan", "0x" + "f" * 300, "1" + ":59" * 300),
    *("1_000", "010", "2.5", "1e-400"),
]
PIECES = [
    *("!!python/object/apply:os.system ['touch hacked']", "!!python/name:os.system", "!!python/object:os.system {}"),
    *("!!binary aGk=", "!!timestamp 2025-01-31", "!!set {a, b}", "!!omap [a: 1]", "!!bool x", "!!int ''", "!!null"),
    "!x",
    *("&a", "*a", "<<: {batch_size: 1}", "<<: *a", "? [a, b]", "---\n", "...\n", "%YAML 1.1\n", "%TAG ! !!\n", "# "),
    *("\0", "\x1b[2J", "\ufeff", "\u2028", "\t", "\r", "'", '"', "|\n", ">-\n", "{", "}", "[", "]", ",", ":", "- "),
    *("null", "true", "off", "~", "''", "{}", "[]", "[[[[", "{a: {b: {c: 1}}}", *NUMBERS),
]


def flipped(generator: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(generator.randint(1, 8)):
        changed[generator.randrange(len(changed))] = generator.randrange(256)
    return bytes(changed)


def cut(generator: random.Random, content: bytes) -> bytes:
    return content[: generator.randrange(len(content))]


def inserted(generator: random.Random, content: bytes) -> bytes:
    for _ in range(generator.randint(1, 3)):
        place = generator.randrange(len(content) + 1)
        content = content[:place] + generator.choice(PIECES).encode() + content[place:]
    return content


def repeated(generator: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(generator.randrange(len(lines) + 1), generator.choice(lines))
    return b"".join(lines)


def swapped(generator: random.Random, content: bytes) -> bytes:
    words = content.replace(b"\n", b" \n ").split(b" ")
    words[generator.randrange(len(words))] = generator.choice(PIECES).encode()
    return b" ".join(words)


def encoded(generator: random.Random, content: bytes) -> bytes:
    encodings = ["utf-16", "utf-32", "utf-8-sig", "utf-7", "cp037"]
    return content.decode(errors="replace").encode(generator.choice(encodings))


def mixed(generator: random.Random, content: bytes) -> bytes:
    for change in generator.sample(CHANGES, 2):
        content = change(generator, content or b" ")
    return content


CHANGES: list[Callable[[random.Random, bytes], bytes]] = [flipped, cut, inserted, repeated, swapped]


CONFIG_FILES, STUDIES = 500, 60
"""How many are changed at random."""


def documents(count: int) -> Iterator[tuple[str, bytes]]:
    valid = {
        "a.yaml": yaml.safe_dump(VALID, sort_keys=False).encode(),
        "b.yaml": yaml.safe_dump(VALID, sort_keys=False, default_flow_style=None, width=100).encode(),
        "a.json": json.dumps(VALID, indent=2).encode(),
    }
    for seed in range(count):
        generator = random.Random(seed)
        name = generator.choice(list(valid))
        yield name, generator.choice([*CHANGES, encoded, mixed, mixed])(generator, valid[name])


def loads(path: Path, content: bytes) -> bool:
    """Tell whether a config file loads, and is the same once saved; anything but our own error fails the test."""
    path.write_bytes(content)
    with warnings.catch_warnings(action="ignore"):
        try:
            config = load_config(path)
        except ConfigFileError as error:
            message = str(error)
        else:
            config.save(path)
            assert load_config(path) == config
            return True
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return False


def test_no_config_file_raises_anything_but_our_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = sum(loads(tmp_path / name, content) for name, content in documents(CONFIG_FILES))
    assert 0.02 * CONFIG_FILES < loaded < 0.5 * CONFIG_FILES  # both ends were reached
    assert not (tmp_path / "hacked").exists()


# --- studies ---


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a study of a baseline, looks and two trials."""
    path = tmp_path_factory.mktemp("study") / "a.study"
    machine = SimulatedMachine(cost=loader_bound)
    kept = StudyStorage(path)
    study = open_study(Setup(space=few_of(gpu_facts()), facts=gpu_facts(), host=host()), storage=kept)
    for part in ("loader", "compute"):
        request = Request(seconds=1.0, part=part)  # type: ignore[arg-type]
        for _ in range(1 if study.known.trials else 2):
            config, kind = study.ask()
            study.tell(machine.measure(config, Request(seconds=1.0)), config, kind)
        study.looked(part, config, machine.measure(config, request))  # type: ignore[arg-type]
    kept.close()
    return path.read_bytes()


def changed_value(generator: random.Random, content: bytes) -> bytes:
    """Give one value in one line another type or size; the line stays valid JSON."""
    lines = content.splitlines()
    place = generator.randrange(len(lines))
    whole = json.loads(lines[place])
    holder: Any = whole
    while True:
        key = generator.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or generator.random() < 0.1:
            break
        holder = inner
    holder[key] = generator.choice([None, -1, 0, 10**400, 1e308, float("nan"), "x", [], {}, True, "\x1b[2J", 1e-300])
    lines[place] = json.dumps(whole, separators=(",", ":")).encode()
    return b"\n".join(lines) + b"\n"


def test_no_study_raises_anything_but_our_error(tmp_path: Path, study: bytes) -> None:
    path, opened = tmp_path / "a.study", 0
    for seed in range(STUDIES):
        generator = random.Random(seed)
        path.write_bytes(generator.choice([*[changed_value] * 3, flipped, cut])(generator, study))
        kept, message = StudyStorage(path), ""
        try:
            found = open_study(Setup(space=few_of(gpu_facts()), facts=gpu_facts(), host=host()), storage=kept)
            if found.known.trials:
                assert found.known.forecast.proposal() is None or found.ask()
            opened += 1
        except StorageError as error:
            message = str(error)
        finally:
            kept.close()
        assert "\n" not in message
    assert 0.1 * STUDIES < opened < 0.99 * STUDIES
