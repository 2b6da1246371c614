from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import autotune
from autotune.config import Config, learning_rate_of
from autotune.errors import UsageError
from autotune.exports import TARGETS, export
from autotune.exports.target import EVERY, settings
from autotune.flags import EXPORTS
from autotune.settings import AMP_MODES, KNOBS
from autotune.step_options import OPTIONS

PLAIN = Config(batch_size=64)
ON_CPU = Config(batch_size=64, amp="bf16", measured={"memory": "host"})
LEFT_OUT = {knob.field: list(knob.choices.values())[-1] for knob in KNOBS.values() if knob.is_left_out and knob.choices}
FULL = Config(
    **LEFT_OUT,
    batch_size=512, num_workers=4, prefetch_factor=3, pin_memory=True, persistent_workers=True,
    amp="fp16", accumulation_steps=2, ranks=2, options=tuple(OPTIONS), intra_op_threads=3, inter_op_threads=2,
    measured={"samples_per_second": 1234.5, "speedup": 2.0, "verdict": "faster", "memory": "device"},
    made_on={"device": "Example"},
)  # fmt: skip
PYTHON = ("lightning", "transformers", "python")

CONFIGS = st.builds(
    Config,
    batch_size=st.integers(1, 4096),
    num_workers=st.integers(0, 16),
    amp=st.sampled_from(AMP_MODES),
    pin_memory=st.booleans(),
    accumulation_steps=st.integers(1, 8),
    ranks=st.integers(1, 8),
    options=st.sets(st.sampled_from(list(OPTIONS))),
    intra_op_threads=st.none() | st.integers(1, 64),
    inter_op_threads=st.none() | st.integers(1, 64),
)


@pytest.mark.parametrize("name", TARGETS)
@given(config=CONFIGS)
def test_whatever_is_set_is_exported_or_said(name: str, config: Config) -> None:
    found = export(config, name)
    assert {gap.knob for gap in found.gaps} == settings(config).keys() - TARGETS[name].knows.keys()
    assert found.has_comments == (name != "deepspeed")
    if name in PYTHON:
        compile(found.text, name, "exec")


def without(knob: str) -> Config:
    """The full configuration, but for one knob, which is as torch has it."""
    if knob in OPTIONS:
        return replace(FULL, options=tuple(option for option in OPTIONS if option != knob))
    plain: dict[str, Any] = {"batch_size": 1, "num_workers": 1, "prefetch_factor": 2, "amp": "off"}
    plain |= {"pin_memory": False, "persistent_workers": False, "accumulation_steps": 1, "ranks": 1}
    return replace(FULL, **{knob: plain.get(knob)})


@pytest.mark.parametrize("knob", EVERY)
@pytest.mark.parametrize("name", TARGETS)
def test_each_knob_is_in_the_values_where_the_tool_knows_it_and_a_gap_where_not(name: str, knob: str) -> None:
    full, less = export(FULL, name), export(without(knob), name)
    if knob in TARGETS[name].knows:
        assert full.text != less.text
        assert full.gaps == less.gaps
    else:
        assert knob in {gap.knob for gap in full.gaps}
        is_default = knob not in ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
        assert (knob in {gap.knob for gap in less.gaps}) != is_default


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in ("deepspeed", "shell")])
def test_the_text_says_every_gap_that_it_does_not_fill(name: str) -> None:
    found = export(FULL, name)
    filled = {
        "intra_op_threads": "torch.set_num_threads(3)",
        "inter_op_threads": "torch.set_num_interop_threads(2)",
        "tf32": 'torch.set_float32_matmul_precision("high")',
        "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    }
    assert found.gaps
    for gap in found.gaps:
        is_filled = name in PYTHON and gap.knob in filled
        assert (filled[gap.knob] if is_filled else gap.otherwise) in found.text, gap


def test_lightning() -> None:
    found, of_ranks = export(FULL, "lightning"), {"devices": 2, "strategy": "ddp"}
    trainer = of_ranks | {"precision": "16-mixed", "accumulate_grad_batches": 2, "benchmark": True}
    assert found.values == {"Trainer": trainer, "DataLoader": FULL.dataloader_kwargs()}
    assert "trainer.fit(torch.compile(module), loader)" in found.text
    on_cpu, trainer = export(ON_CPU, "lightning"), {"accelerator": "cpu", "devices": 1, "precision": "bf16-mixed"}
    assert on_cpu.values["Trainer"] == trainer | {"accumulate_grad_batches": 1}
    assert "trainer.fit(module, loader)" in on_cpu.text


def test_transformers() -> None:
    expected: dict[str, Any] = {"per_device_train_batch_size": 512, "gradient_accumulation_steps": 2}
    expected |= {"bf16": False, "fp16": True, "tf32": True, "optim": "adamw_torch_fused", "torch_compile": True}
    expected |= {"dataloader_num_workers": 4, "dataloader_prefetch_factor": 3, "dataloader_pin_memory": True}
    expected |= {"dataloader_persistent_workers": True, "accelerator_config": {"non_blocking": True}}
    expected |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert export(FULL, "transformers").values["TrainingArguments"] == expected
    on_cpu = export(ON_CPU, "transformers").values["TrainingArguments"]
    assert (on_cpu["use_cpu"], on_cpu["bf16"], on_cpu["optim"]) == (True, True, "adamw_torch")
    assert "accelerator_config" not in on_cpu


def test_accelerate() -> None:
    found = export(FULL, "accelerate")
    accelerator = {"mixed_precision": "fp16", "gradient_accumulation_steps": 2, "dynamo_backend": "inductor"}
    assert found.values["Accelerator"] == accelerator
    file, alone = found.values["config_file"], export(ON_CPU, "accelerate").values["config_file"]
    assert yaml.safe_load(found.text) == file
    assert (file["distributed_type"], file["num_processes"], file["use_cpu"]) == ("MULTI_GPU", 2, False)
    assert (alone["distributed_type"], alone["num_processes"], alone["use_cpu"]) == ("NO", 1, True)
    ranks_on_cpu = export(replace(ON_CPU, ranks=3), "accelerate")
    assert ranks_on_cpu.values["config_file"] == alone  # it would start one process, whatever the file says
    assert any("torchrun --nproc-per-node 3" in note for note in ranks_on_cpu.notes)
    assert found.values["DataLoaderConfiguration"] == {"non_blocking": True}
    assert "Accelerator(\n#         dataloader_config=DataLoaderConfiguration(non_blocking=True),\n" in found.text
    assert " --num_cpu_threads_per_process 3 train.py" in found.text
    plain = export(PLAIN, "accelerate")  # its own number of threads is not taken where torch chose
    assert plain.values["launch"] == {}
    assert ' --num_cpu_threads_per_process $(python -c "import torch; print(torch.get_num_threads())")' in plain.text


@pytest.mark.parametrize("name", ["transformers", "accelerate"])
def test_tf32_that_was_not_measured_is_said(name: str) -> None:
    for config, is_said in ((Config(options=("compile",)), True), (FULL, False)):
        assert any("TF32" in note for note in export(config, name).notes) is is_said


def test_deepspeed() -> None:
    found = export(FULL, "deepspeed")
    assert json.loads(found.text) == found.values["config"] == {
        "train_micro_batch_size_per_gpu": 512,
        "gradient_accumulation_steps": 2,
        "torch_autocast": {"enabled": True, "dtype": "float16"},
    }  # fmt: skip
    assert "torch_autocast" not in export(PLAIN, "deepspeed").values["config"]


def environment(text: str, *, beside: str = "") -> dict[str, str]:
    done = subprocess.run(["sh", "-euc", f"{beside}\n{text}\nenv"], capture_output=True, text=True, env={}, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_the_shells_environment_holds_every_setting_and_keeps_nothing_of_an_earlier_file() -> None:
    found = environment(export(FULL, "shell").text)
    assert found.items() >= export(FULL, "shell").values["environment"].items()
    assert (found["AUTOTUNE_BATCH_SIZE"], found["AUTOTUNE_AMP"]) == ("512", "fp16")
    assert (found["AUTOTUNE_PIN_MEMORY"], found["AUTOTUNE_COMPILE"], found["OMP_NUM_THREADS"]) == ("1", "1", "3")
    found = environment(export(PLAIN, "shell").text, beside=export(FULL, "shell").text)
    kept = {f"AUTOTUNE_{name}" for name in ("BATCH_SIZE", "NUM_WORKERS", "PIN_MEMORY", "AMP", "ACCUMULATION_STEPS")}
    assert {name for name in found if name.startswith("AUTOTUNE_")} == kept


def test_torchrun_starts_the_ranks_that_were_measured_with_their_threads() -> None:
    full, plain = export(FULL, "torchrun"), export(PLAIN, "torchrun")
    assert "torchrun --standalone --nproc-per-node 2 train.py" in full.text
    assert "torchrun --standalone --nproc-per-node 1 train.py" in plain.text
    assert not full.notes
    assert any("for_rank()" in note for note in plain.notes)
    assert environment(full.text)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in environment(plain.text)


@pytest.mark.parametrize("name", TARGETS)
def test_no_text_of_a_file_is_in_an_export_and_the_factor_of_the_learning_rate_is_noted(name: str) -> None:
    """Python reads an encoding from comments, and what is decoded by it is code."""
    made_on = dict.fromkeys(("device", "torch", "workload"), 'x coding: raw_unicode_escape \\u000aprint("hacked")')
    measured = {"samples_per_second": 1.0, "verdict": "faster", "bottleneck": "hacked"}
    found = export(Config(measured=measured, made_on=made_on), name)
    assert "hacked" not in found.text
    assert "coding" not in found.text
    scaled = replace(PLAIN, measured={"learning_rate": learning_rate_of("AdamW", 16, 64)})
    note = "The batch is another: multiply the learning rate by 2 (square root rule of AdamW)."
    assert [note in export(config, name).notes for config in (scaled, PLAIN)] == [True, False]


def test_a_tool_that_is_not_known_is_an_error_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="--to keras: allowed: lightning, transformers, "):
        autotune.export(PLAIN, "keras")


def coverage() -> str:
    """The table of knobs by tool, in Markdown: what each is called there, or that it has no argument."""
    rows = [["", *(target.title for target in TARGETS.values())], ["---"] * (1 + len(TARGETS))]
    rows += [[f"`{knob}`", *(target.knows.get(knob, "—") for target in TARGETS.values())] for knob in EVERY]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_command_line_and_the_documentation_know_the_same_tools_and_what_is_left_to_torch_is_in_none() -> None:
    assert settings(PLAIN) == {"batch_size": 64, "num_workers": 0, "pin_memory": False}
    assert set(settings(FULL)) == set(EVERY)
    assert (*TARGETS, "patch") == EXPORTS
    assert coverage() in (Path(__file__).resolve().parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("amp", AMP_MODES)
@pytest.mark.parametrize(("batches", "steps"), [(4, 1), (4, 2), (5, 2)])
def test_the_plain_loop_trains_as_the_accumulators_does(batches: int, steps: int, amp: str) -> None:
    import torch

    config = Config(batch_size=2, accumulation_steps=steps, amp=amp)
    samples = torch.linspace(-1, 1, 2 * batches - 1)[:, None]  # the last batch is short
    dataset = torch.utils.data.TensorDataset(samples, samples**2)

    def trained(train: Callable[[dict[str, Any]], object]) -> list[float]:
        torch.manual_seed(0)
        model, found = torch.nn.Linear(1, 1), list[float]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: found.append(model.weight.item()))
        train({"dataset": dataset, "model": model, "optimizer": optimizer, "epochs": 2, "training_step": training_step})
        return found

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(batch[0]).float(), batch[1])

    def plain(names: dict[str, Any]) -> None:
        text = export(config, "python").text.replace("shuffle=True", "shuffle=False")
        exec(text, names | {"device": "cpu"})

    def accumulated(names: dict[str, Any]) -> None:
        accumulator, model = config.accumulator(names["optimizer"], "cpu"), names["model"]
        for _ in range(2):
            for batch in config.dataloader(dataset, shuffle=False):
                with config.autocast("cpu"):
                    loss = training_step(model, batch)
                accumulator.backward(loss, len(batch[0]))
                accumulator.step()
            accumulator.flush()

    skipped = steps == 1 and amp == "fp16"  # the scaler begins with too large a scale for one of the gradients
    assert len(trained(plain)) == 2 * -(-batches // steps) - skipped
    assert trained(plain) == pytest.approx(trained(accumulated), rel=1e-4)


def test_the_plain_loop_of_several_ranks_gives_each_its_share_and_says_what_it_leaves_out() -> None:
    found = export(Config(batch_size=2, accumulation_steps=2, ranks=2), "python")
    compile(found.text, "python", "exec")
    assert "torchrun --standalone --nproc-per-node 2 train.py" in found.text
    assert "DataLoader(dataset, sampler=sampler, batch_size=2" in found.text
    assert "    sampler.set_epoch(epoch)\n" in found.text
    assert found.text.index("DistributedDataParallel(model)") < found.text.index("def update")
    assert any("no_sync" in note for note in found.notes)
    assert any("multiply it by 2" in note for note in found.notes)
