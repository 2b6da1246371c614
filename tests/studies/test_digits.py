import json
from pathlib import Path
from statistics import geometric_mean

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "studies" / "digits"


def grid_rates() -> dict[str, list[float]]:
    rounds = json.loads((STUDY / "recorded" / "grid.json").read_text())["rounds"]
    return {name: [one[name] for one in rounds] for name in ("autotune", "grid 1", "grid 2", "grid 3")}


def test_the_recorded_answer_is_near_the_best_of_the_grid_in_a_tenth_of_its_time() -> None:
    means = {name: geometric_mean(rates) for name, rates in grid_rates().items()}
    assert means["autotune"] >= 0.97 * max(rate for name, rate in means.items() if name != "autotune")
    grid = json.loads((STUDY / "recorded" / "grid_machine.json").read_text())["seconds"]
    assert json.loads((STUDY / "recorded" / "grid.json").read_text())["autotune_seconds"] <= 0.1 * grid
    lines = (STUDY / "recorded" / "grid.csv").read_text().splitlines()
    assert len(lines) == 1 + 364


def test_the_readme_holds_the_rates_of_the_grids_finalists() -> None:
    readme, rates = (STUDY / "README.md").read_text(), grid_rates()
    for number in range(4):
        assert f"| {number + 1} | " + " | ".join(f"{values[number]:,.0f}" for values in rates.values()) in readme
    means = " | ".join(f"{geometric_mean(values):,.0f}" for values in rates.values())
    assert f"| geometric mean | {means} |" in readme
