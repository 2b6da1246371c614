import json
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean
from types import ModuleType

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

from tests.processes import printed

pytestmark = pytest.mark.machine

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "studies" / "digits"


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """What a process of the study starts with: the package on its path, and a cache of its own."""
    return dict(os.environ) | {"AUTOTUNE_DIGITS_CACHE": str(tmp_path_factory.mktemp("digits")), "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def written(environment) -> list[Path]:
    """Let two processes write the image files at the same time; return the files that are there then."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", "import workload; print(len(workload.image_files()))"]
    both = [subprocess.Popen(command, cwd=STUDY, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=300)[0].split() for process in both] == [[b"1797"], [b"1797"]]
    return sorted(Path(environment["AUTOTUNE_DIGITS_CACHE"]).rglob("*.*"))


@pytest.fixture
def workload(environment, written, monkeypatch) -> ModuleType:
    """Import the study's module as its training script does: as a sibling on the path."""
    monkeypatch.setenv("AUTOTUNE_DIGITS_CACHE", environment["AUTOTUNE_DIGITS_CACHE"])
    monkeypatch.syspath_prepend(STUDY)
    monkeypatch.delitem(sys.modules, "workload", raising=False)
    yield import_module("workload")
    del sys.modules["workload"]


def run_train(environment, config: Path, *options: str) -> str:
    return printed("-W", "error", STUDY / "train.py", config, "--seconds", "1", *options, **environment)


def test_two_processes_that_write_the_files_at_once_leave_every_file_whole_and_nothing_else(written):
    assert len(written) == 1797
    assert {path.suffix for path in written} == {".jpg"}
    for path in written:
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.size, image.mode) == ("JPEG", (128, 128), "RGB")


def test_a_missing_file_is_written_again(workload):
    lost = workload.image_files()[100]
    content = lost.read_bytes()
    lost.unlink()
    assert lost in workload.image_files()
    assert lost.read_bytes() == content


def test_the_split_holds_out_a_fifth_of_every_digit(workload):
    training, held_out = workload._split(workload.image_files())
    assert (len(training), len(held_out)) == (1437, 360)
    assert not set(training) & set(held_out)
    in_training, in_held_out = (Counter(map(workload._label, paths)) for paths in (training, held_out))
    assert {digit: round(in_training[digit] / in_held_out[digit]) for digit in range(10)} == dict.fromkeys(range(10), 4)


def test_an_item_is_a_normalised_float_image_and_its_digit(workload):
    dataset = workload.build()[1]
    image, label = dataset[0]
    assert image.shape == (3, 64, 64)
    assert image.dtype == torch.float32
    assert type(label) is int
    assert 0 <= label <= 9


def test_training_images_are_distorted_anew_each_time_and_held_out_ones_are_not(workload):
    training, held_out = workload.build()[1], workload.validation()
    assert not torch.equal(training[0][0], training[0][0])
    assert torch.equal(held_out[0][0], held_out[0][0])


def test_normalisation_brings_the_held_out_pixels_to_mean_0_and_deviation_1(workload):
    pixels = torch.stack([image for image, _ in workload.validation()])
    assert abs(pixels.mean()) < 0.05
    assert abs(pixels.std() - 1) < 0.1


def test_distortion_keeps_a_centred_square_in_place_on_average(workload):
    square = Image.new("RGB", (128, 128))
    square.paste((255, 255, 255), (44, 44, 84, 84))
    torch.manual_seed(0)
    seen = torch.stack([torch.tensor(list(workload._distort(square).convert("L").tobytes())) for _ in range(200)])
    mean = seen.view(-1, 64, 64).float().mean(0)
    position = torch.arange(64) + 0.5
    assert abs((mean.sum(0) @ position) / mean.sum() - 32) < 1
    assert abs((mean.sum(1) @ position) / mean.sum() - 32) < 1


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")  # Python 3.12, fork
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_deliver_batches_under(start_method, workload):
    dataset = Subset(workload.build()[1], range(16))
    loader = DataLoader(dataset, batch_size=8, num_workers=1, multiprocessing_context=start_method)
    for number, (images, labels) in enumerate(loader):  # to the end: torch ends workers that are busy by force
        assert images.shape == (8, 3, 64, 64)
        assert labels.tolist() == [dataset[8 * number + index][1] for index in range(8)]


def test_one_training_step_has_a_finite_loss_and_moves_every_parameter(workload):
    torch.manual_seed(0)
    model, dataset = workload.build()
    before = [parameter.clone() for parameter in model.parameters()]
    images, labels = next(iter(DataLoader(dataset, batch_size=32, shuffle=True)))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    torch.optim.AdamW(model.parameters()).step()
    assert torch.isfinite(loss)
    assert not any(map(torch.equal, before, model.parameters()))


def test_the_training_script_runs_a_hand_written_config_and_says_how_fast(environment, written, tmp_path):
    config = tmp_path / "autotune.yaml"
    config.write_text("autotune: 1\ndataloader: {batch_size: 64, num_workers: 1, persistent_workers: true}\n")
    line = run_train(environment, config)
    assert "samples/s over" in line
    assert "promised" not in line


@pytest.mark.timed
def test_the_training_script_compares_with_the_promised_rate(environment, written, tmp_path):
    config = tmp_path / "autotune.yaml"
    config.write_text(
        "autotune: 1\ndataloader: {batch_size: 32}\ntraining: {amp: off, accumulation_steps: 2}\n"
        "threads: {intra_op: 1}\nmeasured: {samples_per_second: 1000.0}\n"
    )
    result = json.loads(run_train(environment, config, "--json"))
    assert result["promised_samples_per_second"] == 1000.0
    assert result["ratio"] == pytest.approx(result["samples_per_second"] / 1000.0)
    assert result["epochs"] >= 1
    assert result["accuracy"] > 0.5


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
