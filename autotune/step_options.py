"""Options of the training step beside precision, applied to a model and its optimizer in place.

Off by default; ``--explore`` lets the search use them. Torch is imported once one is applied.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

OPTIONS = {
    "channels_last": "stores images and convolution weights channels-last; needs 4-D weights",
    "tf32": "multiplies and convolves fp32 in TF32; CUDA only, for the whole process",
    "cudnn_benchmark": "lets cuDNN try its convolution algorithms for each shape; CUDA only, for the whole process",
    "fused_optimizer": "updates all parameters in one kernel; Adam, AdamW, SGD and Adagrad of torch",
    "checkpointing": "recomputes repeated blocks in backward instead of storing their activations; saves memory",
    "compile": "torch.compile; needs a C++ compiler on a CPU, and time for the first step",
}
"""Every option and its effect, in the order of application: compiling comes last and covers all before it."""

TF32_CAPABILITY = (8, 0)
"""CUDA compute capability of the first GPUs with TF32."""


def parse_options(given: str | Iterable[str], name: str = "--explore") -> tuple[str, ...]:
    """Return the named options, each once, in the order of ``OPTIONS``.

    ``given`` is a sequence of names, or text: ``"all"``, or names with commas between. Raises ``UsageError``, which
    names the flag or field ``name``, for an unknown option.
    """
    if given == "all":
        return tuple(OPTIONS)
    parts: list[object] = [given]
    if isinstance(given, str):
        parts = [part.strip() for part in given.split(",")]
    elif isinstance(given, Iterable):
        parts = list(given)
    unknown = [part for part in parts if not isinstance(part, str) or part not in OPTIONS]
    if unknown:
        raise UsageError(f"{name}: unknown option {unknown[0]!r}; allowed: {', '.join(OPTIONS)}")
    return tuple(option for option in OPTIONS if option in parts)


def apply_options(options: Iterable[str], model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Apply options to a model that is on its device, and to its optimizer, in place; again changes nothing more.

    Raises ``UsageError`` with the reason where one does not apply.
    """
    chosen = set(options)
    for option in OPTIONS:
        if option not in chosen:
            continue
        if option == "fused_optimizer":
            _fuse(optimizer)
        else:
            _MODEL_OPTIONS[option](model)


def _refuse(option: str, reason: str) -> UsageError:
    return UsageError(f"{option} does not apply here: {reason}; leave it out")


def _to_channels_last(model: nn.Module) -> None:
    import torch

    if not any(parameter.dim() == 4 for parameter in model.parameters()):
        raise _refuse("channels_last", "the model has no weights of four dimensions")
    to: Any = model.to  # the stubs leave the format out
    to(memory_format=torch.channels_last)


def _allow_tf32(model: nn.Module) -> None:
    """Allow TF32 in matrix products and convolutions.

    These setters keep torch's older and newer flags alike (``allow_tf32``, ``fp32_precision``), so either may be read
    afterwards. Where a program has set only the newer flags, reading the older ones raises.
    """
    import torch

    device = _cuda_device("tf32", model)
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < TF32_CAPABILITY:
        raise _refuse("tf32", f"{torch.cuda.get_device_name(device)} has no TF32 arithmetic")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _benchmark_cudnn(model: nn.Module) -> None:
    import torch

    _cuda_device("cudnn_benchmark", model)
    torch.backends.cudnn.benchmark = True


def _cuda_device(option: str, model: nn.Module) -> torch.device:
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is None or device.type != "cuda":
        raise _refuse(option, f"the model is on {device.type if device else 'no device'}, not on a CUDA device")
    return device


def _fuse(optimizer: torch.optim.Optimizer | None) -> None:
    """Act as the optimizer's constructor with ``fused=True``; its state goes where the kernel wants it."""
    import torch

    if optimizer is None:
        raise UsageError("fused_optimizer needs the optimizer: apply_options(model, optimizer)")
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        raise _refuse("fused_optimizer", f"{type(optimizer).__name__} has no fused kernel")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(group["differentiable"] for group in optimizer.param_groups):
        raise _refuse("fused_optimizer", "the optimizer is differentiable")
    if not all(parameter.is_floating_point() for parameter in parameters):
        raise _refuse("fused_optimizer", "not all parameters are floating-point numbers")
    for settings in (*optimizer.param_groups, optimizer.defaults):
        settings["fused"], settings["foreach"] = True, False
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        if isinstance(state.get("step"), torch.Tensor):  # other kernels keep it on the host
            state["step"] = state["step"].to(device=parameter.device, dtype=torch.float32)
    known: Any = optimizer
    known._step_supports_amp_scaling = True  # the kernel unscales gradients itself, and skips those that overflow


def _checkpoint(model: nn.Module) -> None:
    """Use the model's own checkpointing where it has it (Hugging Face), else run repeated blocks again in backward.

    Names of modules and parameters stay, and so does the state dictionary.
    """
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if callable(enable):
        try:
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        except ValueError as error:
            raise _refuse("checkpointing", str(error).rstrip(".")) from None
        return
    blocks = list(_repeated_blocks(model))
    if not blocks:
        raise _refuse("checkpointing", "the model has no repeated blocks, or they keep running statistics")
    from torch.utils.checkpoint import checkpoint

    known: Any
    for known in blocks:
        if not (isinstance(known.forward, functools.partial) and known.forward.func is checkpoint):
            known.forward = functools.partial(checkpoint, known.forward, use_reentrant=False)  # copies with the model


def _repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules of which a list holds two or more that have parameters and parts of their own.

    A layer alone stores next to nothing but its input, which checkpointing stores too. Modules with running statistics
    would update them twice.
    """
    from torch.nn import ModuleList, Sequential

    children = list(module.children())
    blocks = [child for child in children if any(child.children()) and any(True for _ in child.parameters())]
    if isinstance(module, (Sequential, ModuleList)) and len(blocks) > 1:
        for block in blocks:
            if not any(getattr(part, "track_running_stats", False) for part in block.modules()):
                yield block
        return
    for child in children:
        yield from _repeated_blocks(child)


def _compile(model: nn.Module) -> None:
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if device == "cpu" and shutil.which(compiler.split()[0]) is None:
        raise _refuse("compile", f"there is no C++ compiler ({compiler}), install it or name another in CXX")
    if getattr(model, "_compiled_call_impl", None) is None:
        model.compile()


_MODEL_OPTIONS: dict[str, Callable[[nn.Module], None]] = {
    "channels_last": _to_channels_last,
    "tf32": _allow_tf32,
    "cudnn_benchmark": _benchmark_cudnn,
    "checkpointing": _checkpoint,
    "compile": _compile,
}
