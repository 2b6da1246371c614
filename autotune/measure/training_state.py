"""The state of a training before a probe trains on, brought back afterwards."""

from __future__ import annotations

import copy
import gc

import torch

from autotune.workload import Workload


class TrainingState:
    """Parameters, buffers and the state of an optimizer that is there already, kept on the host."""

    def __init__(self, workload: Workload) -> None:
        self._model = workload.model
        self._values = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._tensors()}
        given = workload.optimizer
        self._optimizer = given if isinstance(given, torch.optim.Optimizer) else None
        self._state = copy.deepcopy(given.state_dict()) if isinstance(given, torch.optim.Optimizer) else None

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the present tensors: another memory format replaces buffers."""
        return [*self._model.named_parameters(), *self._model.named_buffers()]

    def restore(self) -> None:
        """Bring it all back."""
        gc.collect()  # a step holds itself through its optimizer
        with torch.no_grad():
            for name, tensor in self._tensors():
                if name in self._values:
                    tensor.copy_(self._values[name])
                tensor.grad = None
        if self._optimizer is not None and self._state is not None:
            self._optimizer.load_state_dict(copy.deepcopy(self._state))
