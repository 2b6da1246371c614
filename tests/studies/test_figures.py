"""What a study's README and the pages that quote it say follows from its recorded data."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from itertools import groupby
from pathlib import Path
from statistics import fmean, geometric_mean, median
from types import ModuleType
from typing import Any

import pandas
import pytest

from autotune import load_config
from autotune.stats import ALPHA
from studies.batch.table import cells, main, same_batch
from studies.batch.workloads import TASKS
from studies.faults import summary as faults
from studies.faults.zoo import FAULTS
from studies.openings.run import CPU, PLACES, table
from studies.ranks.scripts import SCRIPTS, TRAINERS
from studies.referee import summary as referee
from studies.remedies import summary as remedies
from studies.remedies.jobs import STORED
from tests.ranks.failing import FAILURES, LIMIT

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "studies"
README, OPTUNA = ROOT / "README.md", ROOT / "docs" / "optuna.md"
Quoted = Iterator[str | tuple[str, Path]]
"""What the study's README says, and other pages."""

pytestmark = pytest.mark.filterwarnings("ignore:.*run autotune here to be sure")  # recorded on other machines


def script(study: str, name: str) -> ModuleType:
    """Import a module of a study as its scripts do, and forget it: others have modules of the same name."""
    folder, before = str(STUDIES / study), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        module = import_module(name)
    for new in set(sys.modules) - before:
        if folder in str(getattr(sys.modules[new], "__file__", "")):
            del sys.modules[new]
    return module


def csv(name: str) -> pandas.DataFrame:
    return pandas.read_csv(STUDIES / name, keep_default_na=False, na_values=["", "None", "nan"])


def document(name: str) -> Any:
    return json.loads((STUDIES / name).read_text(encoding="utf-8"))


def of_batch() -> Quoted:
    found, printed = list(cells()), StringIO()
    assert all(cell.is_right or not (cell.is_sure and cell.is_told) for cell in found)
    by_batch = groupby(found, key=lambda cell: (cell.name, cell.batch_size))
    assert sum(any(cell.is_sure and not cell.is_told for cell in each) for _, each in by_batch) <= 1
    assert all(1 / 2.5 <= cell.predicted_cost / cell.cost <= 2.5 for cell in found)
    for _, (low, high), _ in map(same_batch, TASKS):
        assert high >= 1
        assert (high / low) ** 0.5 - 1 <= 0.15
    with redirect_stdout(printed):
        main()
    yield from printed.getvalue().splitlines()


def of_confirmation() -> Quoted:
    runs = csv("confirmation/recorded/runs.csv")

    def of_kind(machine: str, gain: float, budget: float = 600.0) -> tuple[pandas.DataFrame, pandas.Series]:
        chosen = runs[(runs.machine == machine) & (runs.gain == gain) & (runs.budget == budget)]
        return chosen, chosen.verdict.value_counts(normalize=True)

    for machine in ("steady", "drifting", "disturbed", "both"):
        assert of_kind(machine, 0.0)[1].get("faster", 0.0) <= 0.035
    for gain, rounds, share in ((0.05, 10, 0.93), (0.1, 6, 0.99), (0.3, 4, 1.0)):
        chosen, verdicts = of_kind("steady", gain)
        assert chosen.rounds.mean() <= rounds
        assert verdicts["faster"] >= share
    assert of_kind("both", 0.05)[0].rounds.mean() <= 12
    chosen, verdicts = of_kind("steady", 0.0, 300.0)
    assert verdicts["no gain"] >= 0.8
    assert chosen.most_gain.max() <= 0.05
    further = runs[(runs.machine == "steady") & runs.next_low.notna()]
    assert further.next.between(further.next_low, further.next_high).mean() >= 0.93
    found = runs[(runs.verdict == "faster") & (runs.gain >= 0.05)]
    assert (1 + found.gain).between(found.low, found.high).mean() >= 0.95
    real = document("confirmation/recorded/real.json")
    assert real["run"]["verdict"] != "faster"
    assert all(one["rounds"] >= 3 and one["verdict"] == "not proven" for one in real["confirmations"])
    yield from script("confirmation", "summary").table(runs)
    module, places = script("confirmation", "places"), csv("confirmation/recorded/places.csv")
    shares = places.groupby(["places", "gain", "rounds", "rule"]).claimed.mean().unstack()
    index = shares.index
    has_gain = (index.get_level_values("gain") > 0) | index.get_level_values("places").str.startswith("sorted")
    assert (shares.now[~has_gain] <= ALPHA).all()
    assert (shares.now[has_gain] >= shares.before[has_gain]).all()
    assert module.run("sorted by cost, loading hidden", 0.0, 8, 1, "now")["claimed"] == 1
    yield from module.table(places)


def of_digits() -> Quoted:
    answers, grid = ([f"{kind} {number}" for number in (1, 2, 3)] for kind in ("answer", "grid"))
    seconds, shares = list[float](), dict[str, list[float]]()
    for recorded in ("grid", "grid_earlier"):
        rounds = document(f"digits/recorded/{recorded}.json")["rounds"]
        rates = {name: [one[name] for one in rounds] for name in (*answers, *grid)}
        means = {name: geometric_mean(each) for name, each in rates.items()}
        shares[recorded] = [means[name] / max(means[name] for name in grid) for name in answers]
        yield "{:.2f}, {:.2f} and {:.2f}".format(*shares[recorded])
        if recorded == "grid":
            for number in range(3):
                yield f"| {number + 1} | " + " | ".join(f"{each[number]:,.0f}" for each in rates.values())
            yield f"| geometric mean | {' | '.join(f'{mean:,.0f}' for mean in means.values())} |"
            seconds = document("digits/recorded/grid.json")["autotune_seconds"]
    assert median(shares["grid"]) >= 0.93
    assert max(seconds) <= 0.1 * document("digits/recorded/grid_machine.json")["seconds"]
    six = sorted(share for each in shares.values() for share in each)
    yield f"the median of all six is {median(six):.2f}"
    yield f"at {six[0]:.2f} to {six[-1]:.2f} of its best, {median(six):.2f} in the median", README


def of_faults() -> Quoted:
    zoo, kills, confined = (document(f"faults/recorded/{name}.json") for name in ("zoo", "kills", "confined"))
    assert {one["fault"] for one in zoo["studies"] if one["confirmed_rounds"]} == FAULTS.keys()
    for one in zoo["studies"]:
        assert (one["outcome"], one["valid_file"]) == (FAULTS[one["fault"]].outcome, True), one["fault"]
        assert one["processes_left"] == one["segments_left"] == [], one["fault"]
    assert sum(kill["trials_kept"] > 0 for kill in kills) >= 10
    for kill in kills:
        assert kill["was_killed"]
        assert kill["valid_file"]
        assert kill["trials_lost"] == kill["repeated_trials"] == kill["exit_code"] == 0
        assert kill["left_behind"] == ["autotune.study", "autotune.yaml"]
    for limit in confined.values():
        assert (limit["exit_code"], limit["verdict"], limit["rounds"] > 0) == (0, "faster", True)
        assert {trial["outcome"] for trial in limit["ran"]} <= {"ok", "suspect"}
        assert any("would need" in note for note in limit["left_out"])
    assert all(trial["bytes_in_flight"] <= 2**26 for trial in confined["shared memory of 64 MiB"]["ran"])
    assert all(trial["peak_memory_bytes"] <= 2**30 for trial in confined["memory of 1 GiB"]["ran"])
    soaked = faults.soaked()
    warm = [one["memory_bytes"] for one in soaked[faults.WARM :]]
    assert soaked[-1]["minutes"] >= 30
    assert max(warm) <= 1.05 * (max(warm) + min(warm)) / 2
    assert len({one["descriptors"] for one in soaked}) == 1
    yield from (faults.zoo(), faults.kills(), faults.confined(), faults.soak())


def of_first_answers() -> Quoted:
    folder, names = (
        STUDIES / "first_answers",
        ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "amp"),
    )
    results = csv("first_answers/results.csv")
    answers = results[results.door != "by_hand"]
    for row in answers.itertuples():
        recorded = folder / "recorded" / "answers" / f"{row.job}-{row.door.replace(', ', '-')}"
        measured = load_config(recorded / "autotune.yaml").measured or {}
        assert (measured["verdict"], measured["samples_per_second"]) == (row.verdict, row.promised)
        assert row.trained_answer == pytest.approx(sum(document(recorded / "trained.json")["answer"]) / 2, abs=0.1)
        yield f"| {row.trained_present:,.0f} | {row.trained_answer:,.0f} |"
    once = answers[answers.door != "script, again"]
    is_inside = once.trained_answer.between(once.next_run_low, once.next_run_high)
    assert (len(once), (once.verdict == "faster").sum(), is_inside.sum()) == (8, 6, 6)
    trained, rates = pandas.read_json(folder / "recorded" / "jpeg" / "trained.jsonl", lines=True), dict[str, float]()
    found = {run.name: load_config(run / "autotune.yaml") for run in folder.glob("recorded/jpeg/*-*")}
    for run, config in found.items():
        wanted = {name: getattr(config, name) for name in names} | {"threads": config.intra_op_threads}
        rates[run] = trained.rate[[wanted.items() <= json.loads(own).items() for own in trained.settings]].median()
    for number in range(3):
        old, new = rates[f"old-{number}"], rates[f"new-{number}"]
        yield f"| {old:,.0f} |"
        yield f"| {new:,.0f} | {new / old:.3f} |"
    faster = [name for name, config in found.items() if (config.measured or {})["verdict"] == "faster"]
    assert sorted(faster) == ["new-0", "new-1", "new-2", "old-0"]


def of_loader_prediction() -> Quoted:
    runs = csv("loader_prediction/recorded/runs.csv")
    errors = runs[runs.workload == "sleeping"].error.abs()
    assert errors.median() <= 0.02
    assert errors.max() <= 0.06
    assert (runs.predicted / runs.measured - 1).to_list() == pytest.approx(runs.error.to_list(), abs=2e-4)
    yield from script("loader_prediction", "summary").table(runs)


def of_measurement_truth() -> Quoted:
    record = script("measurement_truth", "record")
    recorded = list(record.recorded())
    rows = [row for row in recorded if row.delay != record.SHORT]
    naive, _, ours = record.errors(rows)
    assert median(map(abs, ours)) <= 0.03
    assert max(map(abs, ours)) <= 0.06
    assert max(naive) > 2
    for repetition in record.REPETITIONS:  # prefetching earns nothing where the step is the limit
        kind = (repetition, "compute-bound", "none")
        rates = [row.ours for row in recorded if (row.repetition, row.pipeline, row.delay) == kind and row.num_workers]
        assert max(rates) <= 1.02 * min(rates)
    cost = csv("measurement_truth/recorded/cost.csv")
    assert (cost.autotune_seconds - cost.plain_seconds).median() < 0.01 * 0.010  # of a step of 10 ms
    assert cost.plain_seconds.median() < 0.000_25
    yield from record.tables(recorded).splitlines()


def of_neighbours() -> Quoted:
    summary = script("neighbours", "summary")
    for name in ("before", "runs"):
        runs = summary.read(STUDIES / f"neighbours/recorded/{name}.csv")
        yield "\n".join(summary.table(runs))
        yield summary.twins(runs)


def of_openings() -> Quoted:
    runs, beside = (pandas.read_csv(STUDIES / "openings" / f"{name}.csv", dtype=str) for name in ("runs", "neighbours"))
    for machine in (*PLACES, CPU):
        own = runs[runs.machine == machine]
        assert own.share.astype(float).median() >= 0.95
        assert own["half precision after"].notna().all() or machine == CPU
    assert (beside["largest share"].astype(float) <= 0.9).all()
    assert (beside["out of memory or disturbed"] == "0").all()
    yield table(runs.fillna("").to_dict("records"))
    yield f"In {len(beside)} searches, no trial or probe took more than 90 % of what was left"


def of_promise() -> Quoted:
    summary = script("promise", "summary")
    promises = summary.read()
    assert {promise.name for promise in promises} == {"digits", "source_text", "photographs"}
    for promise in promises:
        assert promise.is_kept, promise.name
        assert min(promise.seconds) >= 60
    yield "\n".join(summary.table(promises))


def of_ranks() -> Quoted:
    rounds, curves = document("ranks/recorded/rounds.json"), document("ranks/recorded/losses.json")
    ratios = [one["trained"] / ((one["before"] + one["after"]) / 2) for one in rounds]
    assert abs(geometric_mean(ratios) - 1) < 0.10
    alone = curves.pop("one process, batches of 64")
    assert min(alone) < alone[0] - 0.4  # it learns
    assert all(curve == pytest.approx(alone, rel=1e-3) for curve in curves.values())
    trials = document("ranks/recorded/failures.json")["trials"]
    assert Counter(trial["how"] for trial in trials) == dict.fromkeys(FAILURES, 5)
    for trial in trials:
        outcome, message = FAILURES[trial["how"]]
        assert trial["outcome"] == outcome
        assert trial["message"].startswith(message)
        assert trial["seconds"] < LIMIT + 15
        assert (trial["is_trial_gone"], trial["is_all_gone"]) == (True, True)
        assert trial["next"] in ("ok", "suspect")
    for one, ratio in zip(rounds, ratios, strict=True):
        rates = f"| {one['before']:,.0f} | **{one['trained']:,.0f}** | {one['after']:,.0f} | {ratio:.2f} |"
        yield f"| {one['round']} {rates}"
    jobs = {job["kind"]: job for job in document("ranks/recorded/scripts.json")["jobs"]}
    assert jobs.keys() == {*SCRIPTS, *TRAINERS}
    assert jobs["slow"]["slowest"] == 1
    for kinds in (SCRIPTS, TRAINERS):
        own = [fmean(jobs[kind]["own"]) for kind in kinds]
        measured = [jobs[kind]["present"] / rate for kind, rate in zip(kinds, own, strict=True)]
        applied = [jobs[kind]["applied"] / jobs[kind]["answer"] for kind in kinds]
        assert all(0.9 <= each <= 1.1 for each in measured)
        assert all(0.85 <= each <= 1.15 for each in applied)
        for kind, rate, of_own, of_promise in zip(kinds, own, measured, applied, strict=True):
            job = jobs[kind]
            promise = f"{job['answer']:,.0f} | {job['applied']:,.0f} | {of_promise:.2f} |"
            yield f"| {rate:,.0f} | {job['present']:,.0f} | {of_own:.2f} | {promise}"
        spans = f"{min(measured):.2f} to {max(measured):.2f}", f"{min(applied):.2f} to {max(applied):.2f}"
        yield f"Measured at {spans[0]} times the own rate; trained at {spans[1]} times the promise"
        yield f"measured at {spans[0]} times", ROOT / "docs" / "ranks.md"
    yield f"{geometric_mean(ratios):.2f} times what was measured beside it"
    yield f"{geometric_mean(ratios):.2f} times the rate measured beside it", ROOT / "docs" / "ranks.md"


def of_samplers() -> Quoted:
    searches, journal = csv("samplers/recorded/searches.csv"), document("samplers/recorded/journal.json")
    (row,) = [line for line in README.read_text(encoding="utf-8").splitlines() if "studies/samplers" in line]
    for sampler in ("predictive", "tpe", "gp", "random"):
        found = searches[searches.sampler == sampler]
        regrets = [100 * found[found.budget == budget].regret for budget in (60, 120, 240)]
        yield f"| {sampler} | {' | '.join(f'{each.median():.1f} ({each.mean():.1f})' for each in regrets)} |"
        yield f"| `{sampler}` | {regrets[-1].median():.1f} % |", OPTUNA
        assert sampler == "random" or f"{regrets[-1].median():.1f} %" in row
    assert (journal["ask_and_tell_ms"] <= 30, journal["file_bytes"] <= 3e6) == (True, True)
    yield f"telling takes {journal['ask_and_tell_ms']} ms in the median"
    yield f"takes {journal['forecast_ms']:.0f} ms. The file has {journal['file_bytes'] / 1e6:.1f} MB"


def of_scripts() -> Quoted:
    runs, ends, together, checks, rates = (
        csv(f"scripts/{name}.csv") for name in ("scripts", "ends", "together", "checks", "rates")
    )
    assert set(runs.script) == {job.stem for job in (STUDIES / "scripts" / "jobs").glob("*.py")}
    runs = runs[runs.verdict != "refused"]
    assert runs.is_right_line.all()
    assert set(runs.files_written) == {"none"}
    shares_a_stream = runs.script.isin(("shards", "replay"))  # how many workers there are decides what comes when
    assert (runs.loss_difference[~shares_a_stream] <= 1e-4).all()
    assert runs.present_ratio.between(0.9, 1.1).all()
    assert runs.ratio.between(0.9, 1.1).all()
    for page in (STUDIES / "scripts" / "README.md", README):
        yield f"{runs.ratio.min():.2f} to {runs.ratio.max():.2f} times", page
    is_proven = runs.verdict == "faster"
    gain = runs.speedup.where(is_proven, 1.0).median()
    yield f"{gain:.1f} times the samples a second in the median, {is_proven.sum()} proven", README
    yield f"{(~is_proven).sum()} undecided", README
    yield f"decodes JPEG files on two CPUs gains {runs.speedup[runs.script == 'classifier'].item()} times", README
    yield f"times it, {runs.ratio.median():.2f} in the median", README
    for run in runs.itertuples():
        present = f"{run.present_rate:,.0f} | {run.own_rate:,.0f} | {run.present_ratio:.3f}"
        applied = f"{run.file_rate:,.0f} | {run.own_rate_applied:,.0f} | {run.ratio:.3f}"
        yield f"{run.verdict} | {run.speedup:g} | {present} | {applied} |"
    assert list(ends.steps[:4]) == [150, 215, 300, 500]
    assert set(ends.verdict) == {"faster"}
    assert ends.to_endless.between(0.9, 1.1).all()
    assert ends.ratio.between(0.9, 1.1).all()
    to_best = together[together.name == "answer"].to_best.item()
    assert to_best >= 0.95
    assert set(zip(checks.change, checks.exit_code, strict=True)) == {("none", 0), ("a sleep", 1)}
    yield f"{ends.to_endless.min():.2f} to {ends.to_endless.max():.2f} times the endless"
    yield f"{to_best:.2f} of the best of that grid"
    assert rates.ratio.between(0.95, 1.05).all()
    projects = csv("scripts/projects.csv")
    assert projects.is_right.all()
    assert projects.is_flag_named.all()
    for job in projects.itertuples():
        own = f"{job.own_rate:,.0f} and {job.own_rate_after:,.0f} | {job.present_rate:,.0f} | {job.ratio:.2f}"
        yield f"| {job.project} {job.version} | {own} | `{job.found}` |"
    module, files = script("scripts", "files"), csv("scripts/files.csv").to_dict("records")
    small, large = 1e6 * module.more(files, "small") / 3000, 100 * module.share(files, "large")
    assert (small <= 10, large <= 3) == (True, True)
    yield f"takes {small:.1f} µs of CPU time a file more than without, a file of 64 MiB {large:.1f} % more"


def of_referee() -> Quoted:
    found = {part: referee.read(part) for part in ("quiet", "busy")}
    for pairs in found.values():
        assert Counter(pair["kind"] for pair in pairs) == {"equal": 20, "slower": 20}
        assert max(pair["seconds"] for pair in pairs) <= referee.MOST_SECONDS
    verdicts = Counter((pair["kind"], pair["verdict"]) for pairs in found.values() for pair in pairs)
    assert verdicts["equal", "faster"] + verdicts["equal", "slower"] <= 4
    assert sum((pair["kind"], pair["verdict"]) == ("slower", "slower") for pair in found["quiet"]) >= 15
    assert Counter(pair["kind"] for pair in referee.read("train_doctor")) == {"equal": 10, "slower": 10}
    yield "\n".join(referee.table())


def of_remedies() -> Quoted:
    runs = remedies.read()
    assert {run["job"] for run in runs} == remedies.JOBS.keys()
    for run in runs:
        whole, in_memory = remedies.remedy(run), remedies.remedy(run, "in-memory")
        if run["job"] not in STORED:
            assert remedies.is_worth(whole) is remedies.is_worth(in_memory) is False
            continue
        rate, size, seconds = remedies.shares(run)
        assert (remedies.is_worth(whole), whole["before"]) == (True, STORED[run["job"]])
        assert 0.85 <= rate <= 1.15
        assert 0.95 <= size <= 1.05
        assert 0.6 <= seconds <= 1.4
    assert remedies.reading() >= 0.8
    yield f"at {remedies.reading():.2f} of the rate"
    yield "\n".join(remedies.table())


def of_simulated_machines() -> Quoted:
    runs, summary = csv("simulated_machines/recorded/runs.csv"), script("simulated_machines", "summary")

    def regrets(method: str, trial: int) -> pandas.Series:
        return runs[(runs.noise == 0.03) & (runs.method == method) & (runs.trial == trial)].regret

    ten, twenty = (regrets("autotune", trial) for trial in (10, 20))
    assert ten.mean() <= 0.03
    assert twenty.mean() <= 0.015
    assert twenty.quantile(0.9) <= 0.04
    assert ten.mean() < regrets("TPE, Optuna's default", 10).mean() / 5
    last = runs[(runs.method == "autotune") & (runs.trial == 30)]
    assert last.out_of_memory.sum() <= 0.02 * (last.trial + last.probes).sum()
    for noise in (0.01, 0.03, 0.1):
        yield from summary.by_method(runs, noise) + summary.by_family(runs, noise)


def of_stopping() -> Quoted:
    summary = script("stopping", "summary")
    before, after = (csv(f"stopping/recorded/{name}_answers.csv") for name in ("before", "after"))
    for name, runs in (("before", before), ("after", after)):
        for row in summary.answers_table(runs)[2:]:
            kind, figures = row.removeprefix("| ").split(" | ", 1)
            yield f"| {kind}, {name} | {figures}"
    means = {name: runs.groupby("kind").second_regret.mean() for name, runs in (("before", before), ("after", after))}
    assert means["after"]["same-batch, long"] <= 0.5 * means["before"]["same-batch, long"]
    large = after[after.possible >= summary.LARGE]
    assert ((large.second_verdict == "faster").groupby(large.kind).mean() >= 0.6).all()
    assert not (large.second_verdict == "no gain").any()


def of_trainers() -> Quoted:
    summary, names = script("trainers", "summary"), ["accelerate", "lightning", "transformers"]
    found = summary.read()
    assert [kept.trainer.split()[0] for kept in found] == names
    ratios = [kept.of_beside for kept in found]
    assert all(abs(ratio - 1) < 0.12 for ratio in ratios)
    claim = f"{min(ratios):.2f} to {max(ratios):.2f} times the rate measured beside them"
    yield claim, ROOT / "docs" / "trainers.md"
    yield "\n".join(summary.table(found))


FIGURES: list[Callable[[], Quoted]] = [
    of_batch, of_confirmation, of_digits, of_faults, of_first_answers, of_loader_prediction, of_measurement_truth,
    of_neighbours, of_openings, of_promise, of_ranks, of_referee, of_remedies, of_samplers, of_scripts,
    of_simulated_machines, of_stopping, of_trainers,
]  # fmt: skip


@pytest.mark.parametrize("figures", FIGURES)
def test_each_figure_of_a_readme_follows_from_its_raw_data(figures: Callable[[], Quoted]) -> None:
    readme, count = STUDIES / figures.__name__.removeprefix("of_") / "README.md", 0
    for quoted in figures():
        said, page = quoted if isinstance(quoted, tuple) else (quoted, readme)
        text = page.read_text(encoding="utf-8")
        assert said in text or said in " ".join(text.split()), page
        count += 1
    assert count
