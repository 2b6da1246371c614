"""The job of a pull request in ``docs/compare.md``, and the commands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from autotune.flags import build_parser, parsers_of

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "compare.md").read_text(encoding="utf-8")


def parsed(line: str) -> dict[str, object]:
    words = shlex.split(line, comments=True)
    assert words[:4] == ["python", "-m", "autotune", "compare"]
    return vars(parsers_of(build_parser())["compare"].parse_args(words[4:]))


def test_the_job_has_the_history_that_it_compares_with() -> None:
    document = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)[0])
    (job,) = document["jobs"].values()
    checkout, _, install, compare = job["steps"]
    assert (checkout["uses"].partition("@")[0], checkout["with"]) == ("actions/checkout", {"fetch-depth": 0})
    assert "torch-autotune" in install["run"]
    command, summary = compare["run"].split(" >> ")
    assert summary.strip() == '"$GITHUB_STEP_SUMMARY"'
    flags = parsed(command.replace("${{ github.base_ref }}", "main"))
    assert (flags["base"], flags["margin"], flags["budget"]) == ("origin/main", "5%", "5m")
    assert flags["script"] == ("train.py", "--epochs", "9")


def test_every_command_is_one() -> None:
    lines = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)[0].splitlines()
    found = [parsed(line) for line in lines]
    assert [each["base"] for each in found] == [None, "origin/main", None, None]
    assert found[0]["script"] == ("train.py --epochs 9", "train.py --epochs 9 --compile")
    assert found[3]["model"] == ["before.py:build", "after.py:build"]
