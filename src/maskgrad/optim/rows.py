"""Fast steps for the usual gradient of a table, COO with whole rows: they call the compiled loop directly.

What does not change between steps (addresses of tables, whether the states fit) is checked once; in each step the rows
are found, which also checks the indices. Everything else goes through the engine: other layouts and dtypes, frozen
entries, ``unspecified="zero"``, one state value per row, many small tables, which it steps in one pass, and whatever is
invalid, because the engine raises the errors.
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

#: Up to this number of values for each thread, a plain SGD step is PyTorch's addition, which neither sorts nor merges.
ADDED = 1 << 17
#: For more tables than these, one pass of the engine is faster.
MANY = 4


def _is_of_rows(grad: Any) -> bool:
    """Whether the gradient lists whole rows."""
    return type(grad) is Tensor and grad.layout is torch.sparse_coo and grad.sparse_dim() == 1


class RowSteps:
    """The tables of a group that are stepped here, once all gradients have been checked."""

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
        """To be called before a step."""
        self.is_open: bool | None = None  # not asked yet
        self.found: list[tuple[DenseParameter, Any, Tensor]] = []
        self.added: list[tuple[Tensor, Tensor]] = []

    def _open(self) -> bool:
        """Asked at the first gradient of rows: whether there is a loop for the rule, and there are few tables."""
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
        # PyTorch's addition adds nothing if a stride is 0, as that of an expanded gradient may be.
        few = self.factor is not None and number_of_values <= ADDED * torch.get_num_threads()
        if few and values.stride() == param.stride():
            if backend_of("maskgrad.kernels.cpu.sorting", "are_inside")(indices, height):
                self.added.append((param, grad))
                return True
            return False  # the engine raises
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
        """Parameter and states for the loop; the memory of a state may change, by share_memory_() for example."""
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
    """The factor of the gradient in a plain SGD step; None for all other steps."""
    numbers = fused.numbers
    if fused.kernel != "sgd_rows_" or numbers["momentum"] != 0 or numbers["weight_decay"] != 0:
        return None
    return -float(numbers["lr"] * numbers["factor"])
