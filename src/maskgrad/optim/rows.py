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

from maskgrad.kernels.selection import compiled_body, runs_compiled
from maskgrad.optim.dense import SINGLE, DenseGroup, DenseParameter
from maskgrad.optim.fused import Fused
from maskgrad.optim.rule import Hyperparameters

__all__ = ["RowSteps"]

#: Up to so many values of a gradient, a plain SGD step is PyTorch's addition, which neither sorts nor merges.
ADDED = 1 << 19
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
        self.fused: Fused | None = None
        self.factor: float | None = None
        self.is_open: bool | None = None  # not asked yet
        self.found: list[tuple[DenseParameter, Any, Tensor]] = []
        self.added: list[tuple[Tensor, Tensor]] = []

    def _open(self) -> None:
        """When the first gradient of rows is seen: are they few tables, and is there a loop for the rule?"""
        numbers = self.numbers
        listed = sum(_is_of_rows(param.grad) for param in self.group.group["params"])
        if listed <= MANY and not (numbers.zeros or numbers.scalars()):
            self.fused = numbers.update(1.0).fused
        self.is_open = self.fused is not None
        if self.fused is not None:
            self.factor = _factor_of_addition(self.fused)

    def takes(self, number: int, param: Tensor, grad: Any) -> bool:
        """Whether ``param`` is stepped here; nothing is written yet."""
        if not _is_of_rows(grad):
            return False
        if self.is_open is None:
            self._open()
        if not self.is_open:
            return False
        assert self.fused is not None
        known = self.group.look(number, param)
        if known is None or not (known.cpu and known.contiguous and known.dtype in SINGLE):
            return False
        indices, values = grad._indices(), grad._values()
        if (
            not runs_compiled(self.fused.kernel, param, indices, values)
            or grad.shape != param.shape
            or values.dtype is not known.dtype
            or indices.dtype is not torch.int64
            or not values.numel()
            or not values.is_contiguous()
            or not compiled_body("sorting", "fits")(len(values), len(param))
        ):
            return False
        # PyTorch's addition takes a stride of 0, which an expanded gradient may have, at its word, and adds nothing.
        if self.factor is not None and values.numel() <= ADDED and values.stride() == param.stride():
            if compiled_body("sorting", "are_inside")(indices[0], len(param)):
                self.added.append((param, grad.detach()))
                return True
            return False  # the engine says which index is wrong
        try:
            found = compiled_body("sorting", "runs")(indices[0], len(param))
        except IndexError:
            return False
        self.found.append((known, found, values.detach()))
        return True

    def step(self, stepped: list[Tensor]) -> None:
        """Step them all; who has been is appended to ``stepped``."""
        for param, grad in self.added:
            param.add_(grad, alpha=self.factor)
            stepped.append(param)
        for known, found, values in self.found:
            state = known.state
            step = float(state["step"]) + 1 if self.numbers.rule.counts_steps else 0.0
            fused = self.numbers.update(step).fused
            assert fused is not None
            states = [state[name] for name in self.names]
            # the memory of a state may have moved, with share_memory_() for example
            addresses = [t.data_ptr() for t in states]
            if known.tables is None or known.tables[0] != addresses:
                tables = [[known.param.detach()], *([t] for t in fused.arranged(states))]
                known.tables = addresses, compiled_body("updates", "prepared")(tables)
            compiled_body("updates", "update_prepared")(
                fused.kernel, known.tables[1], found, values, **fused.numbers
            )
            torch.autograd.graph.increment_version([known.param, *states])
            if self.numbers.rule.counts_steps:
                state["step"] += 1
            stepped.append(known.param)


def _factor_of_addition(fused: Fused) -> float | None:
    """By what a plain SGD step multiplies the gradient that it adds; None: there is more to it."""
    numbers = fused.numbers
    if fused.kernel != "sgd_rows_" or numbers["momentum"] != 0 or numbers["weight_decay"] != 0:
        return None
    return -float(numbers["lr"] * numbers["factor"])
