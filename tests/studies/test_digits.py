"""The recorded grid of digits holds the figures that READMEs quote."""

import json
from pathlib import Path
from statistics import geometric_mean, median

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "studies" / "digits"


ANSWERS, GRID = [f"answer {number}" for number in (1, 2, 3)], [f"grid {number}" for number in (1, 2, 3)]


def grid_rates(recorded: str = "grid") -> dict[str, list[float]]:
    rounds = json.loads((STUDY / "recorded" / f"{recorded}.json").read_text())["rounds"]
    return {name: [one[name] for one in rounds] for name in (*ANSWERS, *GRID)}


def shares(recorded: str) -> list[float]:
    """The rate of each answer over that of the grid's best."""
    means = {name: geometric_mean(rates) for name, rates in grid_rates(recorded).items()}
    return [means[name] / max(means[name] for name in GRID) for name in ANSWERS]


def test_the_recorded_answers_are_near_the_best_of_the_grid_in_a_tenth_of_its_time() -> None:
    now, earlier = shares("grid"), shares("grid_earlier")
    assert median(now) >= 0.93
    six = sorted([*now, *earlier])
    readme = " ".join((STUDY / "README.md").read_text().split())
    for some in (now, earlier):
        assert f"had {some[0]:.2f}, {some[1]:.2f} and {some[2]:.2f}".partition(" ")[2] in readme
    assert f"the median of all six is {median(six):.2f}" in readme
    quoted = f"at {six[0]:.2f} to {six[-1]:.2f} of its best, {median(six):.2f} in the median"
    assert quoted in (ROOT / "README.md").read_text()
    grid = json.loads((STUDY / "recorded" / "grid_machine.json").read_text())["seconds"]
    seconds = json.loads((STUDY / "recorded" / "grid.json").read_text())["autotune_seconds"]
    assert max(seconds) <= 0.1 * grid
    lines = (STUDY / "recorded" / "grid.csv").read_text().splitlines()
    assert len(lines) == 1 + 364


def test_the_readme_holds_the_rates_of_the_grids_finalists() -> None:
    readme, rates = (STUDY / "README.md").read_text(), grid_rates()
    for number in range(3):
        assert f"| {number + 1} | " + " | ".join(f"{values[number]:,.0f}" for values in rates.values()) in readme
    means = " | ".join(f"{geometric_mean(values):,.0f}" for values in rates.values())
    assert f"| geometric mean | {means} |" in readme
