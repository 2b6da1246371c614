from __future__ import annotations

import os
import pickle
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

from autotune.config import THREAD_VARIABLES, Config, load_config
from autotune.errors import UsageError
from autotune.machine.host import inspect_host
from autotune.settings import Amp
from tests.processes import printed

if TYPE_CHECKING:
    from pathlib import Path

DATASET = TensorDataset(torch.arange(20.0))
WITH_WORKERS = Config(batch_size=4, num_workers=2, prefetch_factor=3, persistent_workers=True)
SAMPLER = BatchSampler(SequentialSampler(DATASET), batch_size=3, drop_last=True)
THEIRS: dict[str, Any] = {"sampler": SequentialSampler(DATASET), "generator": torch.Generator(), "collate_fn": list}
THEIRS["worker_init_fn"] = torch.manual_seed
MEASURED = {"samples_per_second": 812.5, "ci95": [800.0, 825.0], "memory": "host", "verdict": "faster"}
MADE_ELSEWHERE = {"device": "No Such CPU", "cpus": 4096, "torch": "1.0.0", "driver": None, "workload": "f00"}


def test_worker_options_are_passed_where_there_are_workers() -> None:
    assert Config().dataloader_kwargs() == {"batch_size": 32, "num_workers": 0, "pin_memory": False}  # as a bare loader
    loader: Any = torch.utils.data.DataLoader(DATASET, num_workers=1)
    assert Config(num_workers=1).prefetch_factor == loader.prefetch_factor
    options = {"prefetch_factor": 3, "persistent_workers": True}
    assert WITH_WORKERS.dataloader_kwargs() == {"batch_size": 4, "num_workers": 2, "pin_memory": False} | options


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        (WITH_WORKERS, {}, {"batch_size": 4, "num_workers": 2, "prefetch_factor": 3, "persistent_workers": True}),
        (
            WITH_WORKERS,
            {"batch_size": 5, "prefetch_factor": 7, "drop_last": True},
            {"batch_size": 5, "prefetch_factor": 7, "drop_last": True, "num_workers": 2},
        ),
        (WITH_WORKERS, {"num_workers": 0}, {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}),
        (WITH_WORKERS, THEIRS, THEIRS | {"drop_last": False}),
        (Config(), {"num_workers": 1}, {"num_workers": 1}),
        (Config(batch_size=8), {"batch_sampler": SAMPLER}, {"batch_sampler": SAMPLER}),
    ],
)
def test_the_dataloader_has_every_setting_and_overrides_and_what_is_the_users_win(
    config: Config, overrides: dict[str, Any], expected: dict[str, Any]
) -> None:
    loader = config.dataloader(DATASET, **overrides)
    assert {name: getattr(loader, name) for name in expected} == expected


def test_a_tuned_configuration_prints_what_was_gained_and_changed() -> None:
    was = {**Config().plain(), "samples_per_second": 406.2}
    tuned = replace(WITH_WORKERS, amp="bf16", measured={**MEASURED, "speedup": 2.0, "baseline": was})
    assert str(tuned).splitlines() == [
        "faster: 2.00 times the baseline, 812 samples/s",
        "batch_size: 32 → 4",
        "num_workers: 0 → 2",
        "prefetch_factor: none → 3",
        "persistent_workers: none → True",
        "amp: off → bf16",
    ]
    advised = {**(tuned.measured or {}), "learning_rate": {"optimizer": "SGD", "rule": "linear", "factor": 0.125}}
    said = str(replace(tuned, measured=advised)).splitlines()[0]
    assert said.endswith("812 samples/s; multiply the learning rate by 0.125 (linear rule of SGD)")
    kept = replace(
        Config(intra_op_threads=2), measured={**MEASURED, "verdict": "undecided", "speedup": 1, "baseline": was}
    )
    assert str(kept) == "undecided: the baseline stays, 812 samples/s"
    alone = {name: value for name, value in (kept.measured or {}).items() if name != "baseline"}
    assert str(replace(kept, measured=alone)) == str(kept)


def test_a_rate_of_the_beginning_of_an_epoch_is_shown_as_that() -> None:
    was, part = {**Config().plain(), "samples_per_second": 406.2}, ", for the first 76,800 samples of an epoch"
    for change in ({"speedup": 2.0, "verdict": "faster"}, {"speedup": 1, "verdict": "undecided"}):
        found = {**MEASURED, **change, "baseline": was}
        whole, tuned = (replace(WITH_WORKERS, measured={**found, "beginning_samples": seen}) for seen in (None, 76800))
        assert "812 samples/s" in str(tuned)
        assert part not in str(whole)
        assert str(tuned).replace(part, "") == str(whole) == str(replace(WITH_WORKERS, measured=found))
        assert part in tuned._repr_html_()


def test_a_notebook_shows_the_verdict_and_the_settings_before_and_after() -> None:
    was = {**Config().plain(), "samples_per_second": 406.2}
    tuned = replace(WITH_WORKERS, measured={**MEASURED, "speedup": 2.0, "verdict": "<b>", "baseline": was})
    page = tuned._repr_html_()
    assert page.startswith("<p><b>&lt;b&gt;: 2.00 times the baseline, 812 samples/s</b></p><table>")
    assert "<tr><th></th><th>before</th><th>after</th></tr>" in page
    assert "<tr><th>num workers</th><td>0</td><td>2</td></tr>" in page
    assert "<tr><th>prefetch factor</th><td></td><td>3</td></tr>" in page
    assert "<tr><th>samples per second</th><td>406</td><td>812</td></tr>" in page
    assert "before" not in Config()._repr_html_()


def test_a_configuration_that_was_not_tuned_prints_its_settings() -> None:
    text = "batch_size=32, num_workers=0, pin_memory=False, amp=off, accumulation_steps=1"
    assert str(Config()) == str(Config(measured=MEASURED)) == text
    assert str(Config(options="tf32", intra_op_threads=1)) == f"{text}, options=['tf32'], intra_op_threads=1"
    assert repr(Config()).startswith("Config(batch_size=32, ")


def test_torchs_advice_against_many_workers_is_silenced_where_they_were_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch._utils.cpu_count", lambda: 1)
    config = Config(batch_size=8, num_workers=2, measured=MEASURED)
    with warnings.catch_warnings(action="error"):
        with pytest.raises(UserWarning, match="This DataLoader will create 2 worker"):
            replace(config, measured=None).dataloader(DATASET)
        assert len(list(config.dataloader(DATASET))) == 3
        pickle.loads(pickle.dumps(config.dataloader(DATASET)))
        with pytest.raises(UserWarning, match="This DataLoader will create 3 worker"):
            config.dataloader(DATASET, num_workers=3)


@pytest.mark.parametrize(
    ("config", "overrides", "message"),
    [
        (Config(), {"batch_sampler": SAMPLER, "batch_size": 3}, "mutually exclusive .* passed were batch_sampler="),
        (Config(), {"sampler": SequentialSampler(DATASET), "shuffle": True}, "mutually exclusive with shuffle"),
        (Config(), {"persistent_workers": True}, "persistent_workers is for workers, and there are none"),
        (Config(), {"prefetch_factor": 4}, "prefetch_factor is for workers, and there are none"),
        (Config(), {"timeout": 60}, "timeout is for workers, and there are none"),
        (WITH_WORKERS, {"num_workers": 0, "multiprocessing_context": "spawn"}, "context is for workers"),
        (Config(), {"num_workers": -1}, "num_workers"),
    ],
)
def test_what_conflicts_is_refused_with_what_was_passed(
    config: Config, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=f"dataloader: .*{message}"):
        config.dataloader(DATASET, **overrides)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
@pytest.mark.parametrize(("amp", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_autocast_computes_in_the_modes_type(amp: Amp, dtype: torch.dtype, device: torch.device | str) -> None:
    with Config(amp=amp).autocast(device):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("amp", "enabled"), [("off", False), ("bf16", False), ("fp16", True)])
def test_only_fp16_scales_gradients(amp: Amp, enabled: bool) -> None:
    loss, scaler = torch.ones(()), Config(amp=amp).grad_scaler("cpu")
    assert scaler.is_enabled() is enabled
    assert (scaler.scale(loss) is loss) is not enabled


COUNTS = "torch.get_num_threads(), torch.get_num_interop_threads()"
BOTH = "intra_op_threads=3, inter_op_threads=5"


@pytest.mark.machine
def test_apply_threads_changes_neither_what_has_no_count_nor_what_torch_has_fixed() -> None:
    code = "import os, torch; from autotune.config import Config; torch.set_num_interop_threads(2)\n"
    code += f"seen = lambda: (dict(os.environ), {COUNTS}); before = seen(); Config().apply_threads()\n"
    code += f"print(seen() == before); Config({BOTH}).apply_threads(); print({COUNTS})"
    assert printed("-c", code) == "True\n3 2"


def test_apply_threads_sets_torchs_counts_and_before_torch_it_does_not_warn() -> None:
    code = "import warnings; warnings.simplefilter('error', UserWarning); from autotune.config import Config\n"
    assert printed("-c", f"{code}Config({BOTH}).apply_threads(); import torch; print({COUNTS})") == "3 5"


@pytest.mark.parametrize(("threads", "warns"), [("1", True), ("3", False)], ids=["after torch", "set by the caller"])
def test_apply_threads_warns_where_it_comes_after_torch_and_reaches_later_children(
    monkeypatch: pytest.MonkeyPatch, threads: str, warns: bool
) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, threads)
    before = torch.get_num_threads()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Config(intra_op_threads=3).apply_threads()
        assert ["apply_threads()" in str(warning.message) for warning in caught] == [True] * warns
        assert torch.get_num_threads() == 3
        assert {os.environ[name] for name in THREAD_VARIABLES} == {"3"}
    finally:
        torch.set_num_threads(before)


def test_the_thread_environment_is_empty_without_a_count() -> None:
    assert Config().thread_environment() == {}
    assert Config(intra_op_threads=2).thread_environment() == dict.fromkeys(THREAD_VARIABLES, "2")


@pytest.mark.parametrize("option", [{"prefetch_factor": 2}, {"persistent_workers": True}])
def test_a_worker_option_without_workers_is_refused_by_name(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(option))} needs num_workers"):
        Config(num_workers=0, **option)


def test_what_was_measured_is_no_part_of_a_configurations_identity() -> None:
    one, two = Config(measured=MEASURED, made_on={"cpus": 2}), Config()
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two)


def test_a_file_made_elsewhere_warns_once_for_each_difference_at_the_line_that_loads_it(tmp_path: Path) -> None:
    Config(made_on=MADE_ELSEWHERE).save(tmp_path / "a.yaml")
    with pytest.warns(UserWarning, match=r"a\.yaml: was made .* here .*; run autotune here") as caught:
        load_config(tmp_path / "a.yaml")
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 3
    assert all(word in text for word, text in zip(("No Such CPU", "4096", "1.0.0"), messages, strict=True))
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
    assert printed("-c", code) == "set()"


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


def test_without_torchrun_there_is_one_rank_and_what_two_were_measured_with_is_shared_among_four(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    config = Config(num_workers=4, prefetch_factor=3, persistent_workers=True, intra_op_threads=2)
    assert config.for_rank() == config
    found = Config(num_workers=6, intra_op_threads=2, ranks=2).for_rank(4)
    assert (found.num_workers, found.intra_op_threads, found.ranks) == (3, 1, 4)


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_a_wrong_number_of_ranks_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    with pytest.raises(UsageError, match=r"LOCAL_WORLD_SIZE is .*; allowed: whole numbers from 1"):
        Config().for_rank()
