"""Steps on some rows of a table, the usual kind: a COO gradient of whole rows, straight to the compiled loop.

What does not change between steps (where the tables lie, whether the states fit) is looked at once; what is left for a
step is to find the rows, which is also the look at the indices. Everything else goes through the engine: other layouts
and dtypes, frozen entries, ``unspecified="zero"``, one state value per row, many small tables, which it steps in one
pass, and whatever is wrong, for the engine says what.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import backend_of
from maskgrad.kernels.selection import PLAIN, runs_eagerly
from maskgrad.optim.dense import SINGLE, DenseGroup, DenseParameter
from maskgrad.optim.rule import Fused, Hyperparameters

__all__ = ["RowSteps"]

#: Up to so many values for each thread, a plain SGD step is PyTorch's addition, which neither sorts nor merges.
ADDED = 1 << 17
#: Tables that the engine steps in one pass gain more than each does alone.
MANY = 4


def _is_of_rows(grad: Any) -> bool:
    """Whether the gradient lists whole rows."""
    return type(grad) is Tensor and grad.layout is torch.sparse_coo and grad.sparse_dim() == 1


class RowSteps:
    """The tables of a group whose rows are found, once all gradients have been looked at."""

    def __init__(self, group: DenseGroup, numbers: Hyperparameters) -> None:
        self.group = group
        self.numbers = numbers
        self.names = [declared.name for declared in numbers.states()]
        self.fused = None if numbers.zeros or numbers.rule.scalars else numbers.fused(1.0)
        self.factor = None if self.fused is None else _factor_of_addition(self.fused)
        later = None if self.fused is None else numbers.fused(7.0)
        self.is_constant = later is not None and later.numbers == self.fused.numbers  # type: ignore[union-attr]
        self.begin()

    def begin(self) -> None:
        """Before a step: no gradient has been seen."""
        self.is_open: bool | None = None  # not asked yet
        self.found: list[tuple[DenseParameter, Any, Tensor]] = []
        self.added: list[tuple[Tensor, Tensor]] = []

    def _open(self) -> bool:
        """When the first gradient of rows is seen: is there a loop for the rule, and are they few tables?"""
        params = self.group.group["params"]
        few = len(params) <= MANY or sum(_is_of_rows(param.grad) for param in params) <= MANY
        return self.fused is not None and few

    def takes(self, number: int, param: Tensor, grad: Any) -> bool:
        """Whether ``param`` is stepped here; nothing is written yet."""
        if not _is_of_rows(grad):
            return False
        if self.is_open is None:
            self.is_open = self._open()
        if not self.is_open:
            return False
        assert self.fused is not None
        known = self.group.look(number, param)
        fits = known is not None and known.cpu and known.contiguous and known.dtype in SINGLE
        if known is None or not fits or type(param) not in PLAIN:
            return False
        indices, values = grad._indices(), grad._values()
        number_of_values, height = values.numel(), known.shape[0]
        if (
            not number_of_values
            or grad.shape != known.shape
            or values.dtype is not known.dtype
            or indices.dtype is not torch.int64
            or not values.is_contiguous()
            or not runs_eagerly(self.fused.kernel, number_of_values)
        ):
            return False
        # PyTorch's addition takes a stride of 0, which an expanded gradient may have, at its word, and adds nothing.
        few = self.factor is not None and number_of_values <= ADDED * torch.get_num_threads()
        if few and values.stride() == param.stride():
            if backend_of("maskgrad.kernels.cpu.sorting", "are_inside")(indices, height):
                self.added.append((param, grad))
                return True
            return False  # the engine says which index is wrong
        if not backend_of("maskgrad.kernels.cpu.sorting", "fits")(values.shape[0], height):
            return False
        try:
            found = backend_of("maskgrad.kernels.cpu.sorting", "runs")(indices[0], height)
        except IndexError:
            return False
        self.found.append((known, found, values.detach()))
        return True

    def step(self, stepped: list[Tensor]) -> None:
        """Step them all, and append those that were stepped to ``stepped``."""
        for param, grad in self.added:
            param.add_(grad, alpha=self.factor)
            stepped.append(param)
        for known, found, values in self.found:
            state = known.state
            states = [state[name] for name in self.names]
            tables = self._tables(known, states)
            if self.is_constant:
                if known.call is None or known.call[0] is not self:
                    known.call = self, *self._bound(tables, 1.0)
                call = known.call[1:]
            else:
                call = self._bound(tables, float(state["step"]) + 1)
            backend_of("maskgrad.kernels.updates.cpu", "update_prepared")(
                tables, found, values.view(-1).numpy(), *call
            )
            torch.autograd.graph.increment_version([known.param, *states])
            if self.numbers.rule.counts_steps:
                state["step"] += 1
            stepped.append(known.param)

    def _tables(self, known: DenseParameter, states: list[Tensor]) -> Any:
        """Where parameter and states lie; the memory of a state may have moved, with share_memory_() for example."""
        assert self.fused is not None
        addresses = [t.data_ptr() for t in states]
        if known.tables is None or known.tables[0] != addresses:
            tables = [[known.param.detach()], *([t] for t in self.fused.arranged(states))]
            known.tables = addresses, backend_of("maskgrad.kernels.updates.cpu", "prepared")(tables)
            known.call = None
        return known.tables[1]

    def _bound(self, tables: Any, step: float) -> Any:
        fused = self.numbers.fused(step)
        assert fused is not None
        return backend_of("maskgrad.kernels.updates.cpu", "bound")(fused.kernel, tables, **fused.numbers)


def _factor_of_addition(fused: Fused) -> float | None:
    """By what a plain SGD step multiplies the gradient that it adds; None: there is more to it."""
    numbers = fused.numbers
    if fused.kernel != "sgd_rows_" or numbers["momentum"] != 0 or numbers["weight_decay"] != 0:
        return None
    return -float(numbers["lr"] * numbers["factor"])
