from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

from autotune.config import THREAD_VARIABLES, Amp, Config, load_config
from autotune.errors import ConfigFileError, UsageError
from autotune.host import inspect_host

if TYPE_CHECKING:
    from pathlib import Path

DATASET = TensorDataset(torch.arange(20.0))
WITH_WORKERS = Config(batch_size=4, num_workers=2, prefetch_factor=3, persistent_workers=True)
MEASURED = {"samples_per_second": 812.5, "ci95": [800.0, 825.0], "memory": "host", "verdict": "faster"}
MADE_ELSEWHERE = {"device": "No Such CPU", "cpus": 4096, "torch": "1.0.0", "driver": None, "workload": "f00"}


def run_python(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180)
    return ended.stdout.strip()


def test_the_default_is_what_a_bare_dataloader_does_with_32_samples() -> None:
    assert Config().dataloader_kwargs() == {"batch_size": 32, "num_workers": 0, "pin_memory": False}


def test_without_workers_there_are_no_worker_options() -> None:
    assert not {"prefetch_factor", "persistent_workers"} & set(Config(num_workers=0).dataloader_kwargs())


def test_with_workers_their_options_are_passed() -> None:
    assert WITH_WORKERS.dataloader_kwargs() == {
        "batch_size": 4,
        "num_workers": 2,
        "pin_memory": False,
        "prefetch_factor": 3,
        "persistent_workers": True,
    }


def test_with_workers_the_prefetch_factor_is_by_default_that_of_torch() -> None:
    loader: Any = torch.utils.data.DataLoader(DATASET, num_workers=1)
    assert Config(num_workers=1).prefetch_factor == loader.prefetch_factor


def test_the_dataloader_is_built_with_every_setting() -> None:
    loader: Any = WITH_WORKERS.dataloader(DATASET)
    settings = loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.persistent_workers
    assert settings == (4, 2, 3, True)


def test_the_dataloader_delivers_batches_of_its_size() -> None:
    assert [len(batch) for (batch,) in Config(batch_size=8).dataloader(DATASET)] == [8, 8, 4]


def test_overrides_win() -> None:
    loader: Any = WITH_WORKERS.dataloader(DATASET, batch_size=5, prefetch_factor=7, drop_last=True)
    assert (loader.batch_size, loader.prefetch_factor, loader.drop_last, loader.num_workers) == (
        5,
        7,
        True,
        2,
    )


def test_a_batch_sampler_replaces_the_batch_size() -> None:
    sampler = BatchSampler(SequentialSampler(DATASET), batch_size=3, drop_last=True)
    loader = Config(batch_size=8).dataloader(DATASET, batch_sampler=sampler)
    assert [len(batch) for (batch,) in loader] == [3] * 6


def seed_worker(number: int) -> None:
    torch.manual_seed(number)


def test_what_is_the_users_is_kept() -> None:
    sampler, generator = SequentialSampler(DATASET), torch.Generator()
    theirs: dict[str, Any] = {"sampler": sampler, "generator": generator, "worker_init_fn": seed_worker}
    loader = WITH_WORKERS.dataloader(DATASET, collate_fn=list, **theirs)
    assert (loader.sampler, loader.generator, loader.worker_init_fn) == (sampler, generator, seed_worker)
    assert loader.collate_fn is list


SAMPLER = BatchSampler(SequentialSampler(DATASET), batch_size=3, drop_last=True)


@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        (Config(), {"batch_sampler": SAMPLER, "batch_size": 3}, "mutually exclusive .* passed were batch_sampler="),
        (Config(), {"sampler": SequentialSampler(DATASET), "shuffle": True}, "mutually exclusive with shuffle"),
        (Config(), {"persistent_workers": True}, "persistent_workers is for workers, and there are none"),
        (Config(), {"prefetch_factor": 4}, "prefetch_factor is for workers, and there are none"),
        (WITH_WORKERS, {"num_workers": 0, "multiprocessing_context": "spawn"}, "context is for workers"),
        (Config(), {"num_workers": -1}, "num_workers"),
    ],
)
def test_what_conflicts_is_refused_with_what_was_passed(
    config: Config, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=f"dataloader: .*{message}"):
        config.dataloader(DATASET, **overrides)


def test_workers_can_be_overridden_away() -> None:
    loader: Any = WITH_WORKERS.dataloader(DATASET, num_workers=0)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)


def test_workers_can_be_overridden_in() -> None:
    assert Config().dataloader(DATASET, num_workers=1).num_workers == 1


@pytest.mark.parametrize(("amp", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_computes_in_the_modes_type(amp: Amp, dtype: torch.dtype) -> None:
    with Config(amp=amp).autocast("cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_autocast_takes_a_device_or_its_name(device: torch.device | str) -> None:
    with Config(amp="bf16").autocast(device):
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("amp", "enabled"), [("off", False), ("bf16", False), ("fp16", True)])
def test_only_fp16_scales_gradients(amp: Amp, enabled: bool) -> None:
    assert Config(amp=amp).grad_scaler("cpu").is_enabled() is enabled


def test_a_disabled_scaler_passes_the_loss_through() -> None:
    loss = torch.ones(())
    assert Config(amp="bf16").grad_scaler("cpu").scale(loss) is loss


def test_apply_threads_sets_torchs_counts() -> None:
    code = (
        "import torch; from autotune.config import Config\n"
        "Config(intra_op_threads=3, inter_op_threads=5).apply_threads()\n"
        "print(torch.get_num_threads(), torch.get_num_interop_threads())"
    )
    assert run_python(code) == "3 5"


@pytest.mark.machine
def test_apply_threads_reaches_later_children_through_the_environment() -> None:
    code = (
        "import os; from autotune.config import THREAD_VARIABLES, Config\n"
        "Config(intra_op_threads=3).apply_threads()\n"
        "print({os.environ[name] for name in THREAD_VARIABLES})"
    )
    assert run_python(code) == "{'3'}"


@pytest.mark.parametrize(
    ("before", "variable", "warns"),
    [("import torch", "", True), ("", "", False), ("import torch", "OMP_NUM_THREADS=3", False)],
    ids=["after torch", "before torch", "set by the caller"],
)
def test_apply_threads_warns_where_it_comes_after_torch(before: str, variable: str, warns: bool) -> None:
    code = (
        f"import os, warnings; os.environ.update(dict(pair.split('=') for pair in {variable!r}.split()))\n"
        f"{before}\n"
        "from autotune.config import Config\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    Config(intra_op_threads=3).apply_threads()\n"
        "import torch\n"
        "print(['apply_threads()' in str(warning.message) for warning in caught], torch.get_num_threads())"
    )
    assert run_python(code) == f"{[True] if warns else []} 3"


@pytest.mark.machine
def test_apply_threads_without_counts_changes_nothing() -> None:
    code = (
        "import os, torch; from autotune.config import Config\n"
        "before = dict(os.environ), torch.get_num_threads(), torch.get_num_interop_threads()\n"
        "Config().apply_threads()\n"
        "print(before == (dict(os.environ), torch.get_num_threads(), torch.get_num_interop_threads()))"
    )
    assert run_python(code) == "True"


@pytest.mark.machine
def test_apply_threads_leaves_an_inter_op_count_that_torch_has_fixed() -> None:
    code = (
        "import torch; from autotune.config import Config\n"
        "torch.set_num_interop_threads(2)\n"
        "Config(intra_op_threads=3, inter_op_threads=5).apply_threads()\n"
        "print(torch.get_num_threads(), torch.get_num_interop_threads())"
    )
    assert run_python(code) == "3 2"


def test_the_thread_environment_is_empty_without_a_count() -> None:
    assert Config().thread_environment() == {}
    assert Config(intra_op_threads=2).thread_environment() == dict.fromkeys(THREAD_VARIABLES, "2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 1.0),
        ("batch_size", 2**63),
        ("batch_size", None),
        ("num_workers", -1),
        ("num_workers", "2"),
        ("prefetch_factor", 0),
        ("pin_memory", 1),
        ("pin_memory", None),
        ("persistent_workers", "yes"),
        ("amp", "fp8"),
        ("amp", False),
        ("accumulation_steps", 0),
        ("intra_op_threads", 0),
        ("inter_op_threads", 2.5),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"num_workers": 1, name: value}
    with pytest.raises(UsageError, match=f"^{name} is .*; allowed: "):
        Config(**arguments)


@pytest.mark.parametrize("option", [{"prefetch_factor": 2}, {"persistent_workers": True}])
def test_a_worker_option_without_workers_is_refused_by_name(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(option))} needs num_workers"):
        Config(num_workers=0, **option)


def test_what_was_measured_is_no_part_of_a_configurations_identity() -> None:
    one, two = Config(measured=MEASURED, made_on={"cpus": 2}), Config()
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two)


@pytest.mark.parametrize("name", ["autotune.yaml", "autotune.json"])
def test_measured_and_made_on_survive_the_file(tmp_path: Path, name: str) -> None:
    made_on = {"device": inspect_host().cpu_model, "cpus": inspect_host().cpus, "date": "2025-01-31"}
    Config(measured=MEASURED, made_on=made_on).save(tmp_path / name)
    config = load_config(tmp_path / name)
    assert (config.measured, config.made_on) == (MEASURED, made_on)


def test_a_tuple_is_saved_as_a_list(tmp_path: Path) -> None:
    Config(measured={"ci95": (1.0, 2.0)}).save(tmp_path / "a.yaml")
    assert load_config(tmp_path / "a.yaml").measured == {"ci95": [1.0, 2.0]}


def test_a_path_may_be_a_text(tmp_path: Path) -> None:
    WITH_WORKERS.save(str(tmp_path / "a.yaml"))
    assert load_config(str(tmp_path / "a.yaml")) == WITH_WORKERS


def test_a_file_with_the_batch_size_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("autotune: 1\ndataloader: {batch_size: 8}\n")
    assert load_config(tmp_path / "a.yaml") == Config(batch_size=8)


@pytest.mark.parametrize("option", ["prefetch_factor: 2", "persistent_workers: true"])
def test_a_file_with_worker_options_and_no_workers_names_the_option(tmp_path: Path, option: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"autotune: 1\ndataloader: {{batch_size: 8, {option}}}\n")
    with pytest.raises(ConfigFileError, match=rf"a.yaml: dataloader: {option.split(':')[0]} needs num_workers"):
        load_config(path)


def test_a_file_made_elsewhere_warns_once_for_each_difference(tmp_path: Path) -> None:
    Config(made_on=MADE_ELSEWHERE).save(tmp_path / "a.yaml")
    with pytest.warns(UserWarning, match=r"a\.yaml: was made .* here .*; run autotune here") as caught:
        load_config(tmp_path / "a.yaml")
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 3
    assert all(word in text for word, text in zip(("No Such CPU", "4096", "1.0.0"), messages, strict=True))


def test_the_warning_points_at_the_line_that_loads_the_file(tmp_path: Path) -> None:
    Config(made_on=MADE_ELSEWHERE).save(tmp_path / "a.yaml")
    with pytest.warns(UserWarning, match="was made") as caught:
        load_config(tmp_path / "a.yaml")
    assert {warning.filename for warning in caught} == {__file__}


def test_a_file_made_here_does_not_warn(tmp_path: Path) -> None:
    host = inspect_host()
    made_on = {"device": host.cpu_model, "cpus": host.cpus, "torch": torch.__version__, "driver": None}
    Config(made_on=made_on).save(tmp_path / "a.yaml")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_config(tmp_path / "a.yaml")


def test_reading_and_writing_a_file_imports_neither_torch_nor_optuna(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    Config(made_on=MADE_ELSEWHERE).save(path)
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); from autotune.config import load_config\n"
        "after_import = {name for name in ('yaml', 'psutil', 'pynvml') if name in sys.modules}\n"
        f"load_config({str(path)!r}).save({str(path)!r})\n"
        "print(after_import | {name for name in ('torch', 'optuna', 'numpy') if name in sys.modules})"
    )
    assert run_python(code) == "set()"


def test_options_are_part_of_a_configurations_identity_and_their_order_is_not() -> None:
    assert Config(options=("compile", "tf32")) == Config(options=("tf32", "compile")) != Config()
    with pytest.raises(UsageError, match="options: unknown option 'turbo'; allowed: channels_last"):
        Config(options=("turbo",))


def test_without_options_applying_them_changes_nothing() -> None:
    model = torch.nn.Conv2d(2, 2, 2)
    before = dict(vars(model))
    Config().apply_options(model)
    assert vars(model) == before


# --- several ranks on a host ---


@pytest.mark.parametrize(
    ("workers", "threads", "ranks", "expected"),
    [
        (8, 6, 1, (8, 6)),
        (8, 6, 2, (4, 3)),
        (8, 6, 4, (2, 1)),
        (3, 1, 2, (1, 1)),
        (1, 4, 8, (1, 1)),
        (0, 4, 2, (0, 2)),
        (4, None, 2, (2, None)),
    ],
)
def test_ranks_share_the_cpus_of_their_host(
    monkeypatch: pytest.MonkeyPatch, workers: int, threads: int | None, ranks: int, expected: tuple[int, int | None]
) -> None:
    config = Config(batch_size=64, num_workers=workers, intra_op_threads=threads, accumulation_steps=3)
    found = config.for_rank(ranks)
    assert (found.num_workers, found.intra_op_threads) == expected
    assert (found.batch_size, found.accumulation_steps) == (64, 3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert config.for_rank() == found


def test_without_torchrun_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    config = Config(num_workers=4, prefetch_factor=3, persistent_workers=True, intra_op_threads=2)
    assert config.for_rank() == config


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_a_wrong_number_of_ranks_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    with pytest.raises(UsageError, match=r"LOCAL_WORLD_SIZE is .*; allowed: whole numbers from 1"):
        Config().for_rank()


def test_both_numbers_of_threads_come_back_from_a_file(tmp_path: Path) -> None:
    Config(intra_op_threads=3, inter_op_threads=5).save(tmp_path / "a.yaml")
    found = load_config(tmp_path / "a.yaml")
    assert (found.intra_op_threads, found.inter_op_threads) == (3, 5)
