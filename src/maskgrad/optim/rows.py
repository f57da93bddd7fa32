"""Fast steps for the usual gradient of a table, COO with whole rows, which call the compiled loop directly.

Finding the rows checks the indices. Everything else uses the engine: other layouts and dtypes, frozen entries,
``unspecified="zero"``, one state value per row, and invalid arguments, for which the engine raises the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import backend_of
from maskgrad.kernels.selection import loops_run
from maskgrad.mode import PLAIN
from maskgrad.optim.rule import Fused, Hyperparameters
from maskgrad.optim.torch_steps import SINGLE, are_usual, is_simple

__all__ = ["RowLoop"]

#: Up to this number of values for each thread, a plain SGD step uses PyTorch's addition, which neither sorts nor
#: merges. Merging first takes 0.9 to 1.6 times as long below, and 0.85 at twice as many, in a table beyond the cache.
ADDED = 1 << 20
#: Number of tables whose addresses are kept.
KEPT = 256


class RowLoop:
    """The loop of a rule over the rows of one table, with checked options."""

    def __init__(self, numbers: Hyperparameters) -> None:
        fused = numbers.fused(1.0)
        assert fused is not None
        self.numbers, self.fused, self.factor = numbers, fused, _factor_of_addition(fused)
        later = numbers.fused(7.0)
        self.is_constant = later is not None and later.numbers == fused.numbers
        self.tables: dict[Any, Any] = {}  # arguments of the loop for tables, by their addresses
        self.step: tuple[float, torch.dtype] | None = None  # the last step, and its loop and scalars
        self.call: Any = None
        self.names = [declared.name for declared in numbers.states]
        self.counts = numbers.counts

    def table(self, param: Tensor, states: Mapping[Tensor, Any]) -> Callable[[], None] | None:
        """Prepare and check the step of ``param``, writing nothing; None if this loop does not support it."""
        grad = param.grad
        if (
            type(grad) is not Tensor
            or not (grad.layout is torch.sparse_coo and grad.sparse_dim() == 1)  # whole rows
            or type(param) not in PLAIN
            or (param.__dict__ and not is_simple(param))
            or not (param.is_cpu and param.dtype in SINGLE and param.is_contiguous())
        ):
            return None
        state: Mapping[str, Tensor] = states.get(param) or {}
        if (self.names or self.counts) and not are_usual(param, state, self.names, self.counts):
            return None
        indices, values = grad._indices(), grad._values()
        number, height = values.numel(), param.shape[0]
        if (
            not number
            or grad.shape != param.shape
            or values.dtype is not param.dtype
            or indices.dtype is not torch.int64
            or not values.is_contiguous()
            or not loops_run()
        ):
            return None
        # PyTorch's addition adds nothing if a stride is 0, as that of an expanded gradient may be.
        few = self.factor is not None and number <= ADDED * torch.get_num_threads()
        if few and values.stride() == param.stride():
            inside = backend_of("maskgrad.kernels.cpu.sorting", "are_inside")(indices, height)
            return partial(param.add_, grad, alpha=self.factor) if inside else None  # type: ignore[return-value]
        if not backend_of("maskgrad.kernels.cpu.sorting", "fits")(values.shape[0], height):
            return None
        try:
            found = backend_of("maskgrad.kernels.cpu.sorting", "runs")(indices[0], height)
        except IndexError:
            return None
        return partial(self._step, param, state, found, values.detach())

    def _step(self, param: Tensor, state: Mapping[str, Tensor], found: Any, values: Tensor) -> None:
        states = [state[name] for name in self.names]
        place = param.shape, param.dtype, param.data_ptr(), *[t.data_ptr() for t in states]
        prepared = self.tables.get(place)
        if prepared is None:
            tables = [param.detach(), *self.fused.arranged(states)]
            prepared = backend_of("maskgrad.kernels.updates.cpu", "prepared")(self.fused.kernel, tables)
            if len(self.tables) >= KEPT:  # their memory has changed
                self.tables.clear()
            self.tables[place] = prepared
        step = 1.0 if self.is_constant else float(state["step"]) + 1, param.dtype
        if step != self.step:  # most tables of a group have the same number of steps
            fused = self.numbers.fused(step[0])
            assert fused is not None
            bound = backend_of("maskgrad.kernels.updates.cpu", "bound")
            self.call = bound(fused.kernel, prepared, **fused.numbers)
            self.step = step
        backend_of("maskgrad.kernels.updates.cpu", "update_prepared")(
            prepared, found, values.view(-1).numpy(), *self.call
        )
        torch.autograd.graph.increment_version([param, *states])
        if self.counts:
            state["step"] += 1


def _factor_of_addition(fused: Fused) -> float | None:
    """The factor of the gradient in a plain SGD step; None for all other steps."""
    numbers = fused.numbers
    if fused.kernel != "sgd" or numbers["momentum"] != 0 or numbers["weight_decay"] != 0:
        return None
    return -float(numbers["lr"] * numbers["factor"])
