"""Small tables of one step together: a model with 26 of them starts one kernel, not 26.

An update of some hundred rows takes less time than its way to the kernel. Tables with equal numbers, dtype and row
shape are handed over as one; their gradients are copied behind one another, so large ones, which gain nothing, go
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from maskgrad import kernels
from maskgrad.gradients.gradient import Gradient
from maskgrad.optim.engine import apply_update, row_tables
from maskgrad.optim.rule import Fused, Update

__all__ = ["Batch"]

_LARGE = 1 << 17  # values of a gradient; a copy of them takes longer than starting a kernel


@dataclass(slots=True)
class _Group:
    fused: Fused
    params: list[Tensor] = field(default_factory=list)
    states: list[list[Tensor | None]] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    done: list[Callable[[], None]] = field(default_factory=list)

    def run(self) -> None:
        tables: list[Sequence[Tensor | None]] = [self.params, *map(list, zip(*self.states, strict=True))]
        kernels.update_tables_(self.fused.kernel, tables, self.indices, self.values, **self.fused.numbers)
        for done in self.done:
            done()


class Batch:
    """Updates of different parameters, in any order."""

    def __init__(self) -> None:
        self._groups: dict[Any, _Group] = {}

    def add(
        self,
        update: Update,
        param: Tensor,
        gradient: Gradient,
        states: Sequence[Tensor],
        done: Callable[[], None],
    ) -> None:
        """Perform an update, at once or with :meth:`run`, and then call ``done``: a step counts when it was made."""
        fused, read = update.fused, None
        if gradient.lists_rows and 0 < gradient.values.numel() < _LARGE:
            read = row_tables(update, [param.detach(), *states], gradient)
        if read is None or gradient.rows is None or fused is None:
            apply_update(update, param, gradient, states)
            done()
            return
        (table, *rest), values = read
        arranged = fused.arranged(rest)
        used = tuple(state is not None for state in arranged)
        key = (
            fused.kernel, *sorted(fused.numbers.items()), used, table.dtype, table.device, table.shape[1:],
        )  # fmt: skip
        group = self._groups.setdefault(key, _Group(fused))
        group.params.append(table)
        group.states.append(arranged)
        group.indices.append(gradient.rows)
        group.values.append(values)
        group.done.append(done)

    def run(self) -> None:
        """Perform what was put off."""
        for group in self._groups.values():
            group.run()
        self._groups.clear()
