"""One exchange: all ranks contribute gradients of any kind, and all get their sum, of one kind.

Every rank describes its contributions, then sends them, then assembles the results. The last two steps depend only on
the descriptions of all ranks, so that all start the same collectives in the same order. A rank whose gradients have an
error says so in the first message, and all ranks raise.

Any number of gradients is sent in a few messages: dense tensors by a ring all-reduce, or lists of
rows by an all-gather. Lists are merged in the order of the ranks, so that all ranks have the same sums, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.distributed.agreement import Postponed, check_consistent, digest
from maskgrad.distributed.process_group import ProcessGroup, as_bytes, from_bytes
from maskgrad.distributed.reduction_plan import (
    GradientFacts,
    ReductionPlan,
    local_gradient,
    reduction_plan,
)
from maskgrad.gradients.gradient import AnyGradient, Gradient
from maskgrad.sparse import prod

__all__ = ["NamedGradient", "Op", "exchanged"]

Op = Literal["sum", "avg"]

_HEAD = 3
_FIRST = 64
"""Number of gradients that the first message describes; its length must be known before any comparison."""


class NamedGradient(NamedTuple):
    """One gradient of an exchange; None if this rank has none."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    gradient: AnyGradient | None


def exchanged(
    gradients: Sequence[NamedGradient], group: ProcessGroup, op: Op, error: Exception | None = None
) -> list[AnyGradient | None]:
    """Return the sums over the ranks, each of one kind and equal bit for bit on all ranks; None if no rank had any.

    ``gradients`` are those of this rank, in the same order on all ranks; ``op`` is ``"sum"``, or ``"avg"``: divided by
    the number of ranks. If a rank has an ``error``, all raise.
    """
    parts: list[tuple[GradientFacts, Gradient | None]] = [(GradientFacts(), None) for _ in gradients]
    if error is None:
        with Postponed() as postponed:
            if op not in ("sum", "avg"):
                raise ValueError(f"op must be 'sum' or 'avg', found {op!r}")
            parts = [local_gradient(g.gradient, g.shape, g.name) for g in gradients]
        error = postponed.error
    facts = _facts_of_all(gradients, [facts for facts, _ in parts], group, op, error)
    items: dict[tuple[str, bool], list[_Item]] = {}
    for number, (gradient, (_, part)) in enumerate(zip(gradients, parts, strict=True)):
        plan = reduction_plan([row[number] for row in facts], gradient.shape, op)
        if plan is not None:
            key = str(group.transport(gradient.device)), plan.listed
            finer = None if part is None else part.finer(plan.leading)
            items.setdefault(key, []).append(_Item(number, gradient.device, finer, plan))
    transfers = [
        (_SparseTransfer if listed else _DenseTransfer)(group, torch.device(device), items[device, listed])
        for device, listed in sorted(items)
    ]
    found: dict[int, AnyGradient] = {}
    for transfer in transfers:
        found.update(transfer.finish())
    return [found.get(number) for number in range(len(gradients))]


def _facts_of_all(
    gradients: Sequence[NamedGradient],
    own: Sequence[GradientFacts],
    group: ProcessGroup,
    op: Op,
    error: Exception | None,
) -> list[list[GradientFacts]]:
    """The descriptions of all ranks, by rank; or raise on all of them."""
    plan = f"{group.what} op={op!r} of {len(gradients)} tensors: " + "; ".join(
        f"{g.name} {tuple(g.shape)} {g.dtype} {g.device.type}" for g in gradients
    )
    width = len(GradientFacts._fields)
    numbers = [n for facts in own for n in facts]
    first, rest = numbers[: _FIRST * width], numbers[_FIRST * width :]
    head = [int(error is not None), digest(plan), len(gradients)]
    message = head + first + [0] * (_FIRST * width - len(first))
    rows = group.gather(torch.tensor(message, dtype=torch.int64, device=group.device)).tolist()
    if any(row[0] or row[1] != rows[0][1] for row in rows):
        check_consistent(group, plan, error)
    rows = [row[_HEAD:] for row in rows]
    if rest:
        more = group.gather(torch.tensor(rest, dtype=torch.int64, device=group.device)).tolist()
        rows = [row + others for row, others in zip(rows, more, strict=True)]
    return [[GradientFacts(*row[i * width : (i + 1) * width]) for i in range(len(gradients))] for row in rows]


class _Item(NamedTuple):
    """A gradient in transfer: its index in the exchange, and the device of the result."""

    number: int
    device: torch.device
    part: Gradient | None
    plan: ReductionPlan

    def whole(self) -> Tensor:
        """Values of all entries (n,), in the dtype of the sum: 0 where unspecified."""
        if self.part is None:
            return torch.zeros(prod(self.plan.shape), dtype=self.plan.summed, device=self.device)
        return self.part.whole().reshape(-1).to(self.plan.summed)

    def specified(self) -> Tensor:
        """int32 (n,): 1 for the rows that are specified."""
        if self.part is None:
            return torch.zeros(self.plan.number_of_rows, dtype=torch.int32, device=self.device)
        return self.part.specified().to(torch.int32)


class _DenseTransfer:
    """Dense tensors, zero if a rank has none, added in one message; with counts of the ranks that specify entries."""

    def __init__(self, group: ProcessGroup, device: torch.device, items: list[_Item]) -> None:
        self._group = group
        self._works: list[Any] = []
        self._sums: list[tuple[list[_Item], Tensor, Tensor]] = []
        for dtype in sorted({item.plan.summed for item in items}, key=str):  # the same order on all ranks
            self._add_up([item for item in items if item.plan.summed is dtype], device)

    def _add_up(self, items: list[_Item], device: torch.device) -> None:
        values = [item.whole().to(device) for item in items]
        counts = [item.specified().to(device) for item in items if item.plan.partial]
        # Concatenation copies, also one tensor: the gradient itself must not change before all have responded.
        flat = torch.cat(values)
        self._group.add(flat, self._works)
        count = torch.cat(counts) if counts else torch.empty(0, dtype=torch.int32)
        self._group.add(count, self._works)
        self._sums.append((items, flat, count))

    def finish(self) -> dict[int, AnyGradient]:
        """The results by index."""
        self._group.wait(self._works)
        found: dict[int, AnyGradient] = {}
        for items, flat, count in self._sums:
            totals = flat.split([prod(item.plan.shape) for item in items])
            counts = iter(count.split([item.plan.number_of_rows for item in items if item.plan.partial]))
            for (number, device, _, plan), total in zip(items, totals, strict=True):
                own_count = next(counts).to(device) if plan.partial else None
                found[number] = plan.of_whole(total.to(device), own_count)
        return found


class _SparseTransfer:
    """Lists of rows, in one message from each rank to all."""

    def __init__(self, group: ProcessGroup, device: torch.device, items: list[_Item]) -> None:
        self._items, self._group = items, group
        self._works: list[Any] = []
        pieces = [piece.to(device) for item in items for piece in _packed(item.part, item.plan)]
        message = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8, device=device)
        lengths = [sum(_length(item.plan, rank) for item in items) for rank in range(group.size)]
        padded = torch.nn.functional.pad(message, (0, max(lengths) - len(message)))
        self._messages = list(group.gather(padded, self._works).unbind(0))

    def finish(self) -> dict[int, AnyGradient]:
        """The results by index."""
        self._group.wait(self._works)
        found: dict[int, AnyGradient] = {}
        for gradient, device, _, plan in self._items:
            rows, values = [], []
            for rank, number in enumerate(plan.counts):
                listed, rest = from_bytes(self._messages[rank], _index_dtype(plan), (number,))
                piece, self._messages[rank] = from_bytes(rest, plan.summed, (number, *plan.row_shape))
                rows.append(listed)
                values.append(piece)
            listed, piece = torch.cat(rows).long().to(device), torch.cat(values).to(device)
            found[gradient] = plan.of_rows(*kernels.merge_rows(listed, piece, plan.number_of_rows, "sum"))
        return found


def _index_dtype(plan: ReductionPlan) -> torch.dtype:
    return torch.int32 if plan.number_of_rows < 2**31 else torch.int64


def _packed(part: Gradient | None, plan: ReductionPlan) -> list[Tensor]:
    if part is None or part.rows is None:
        return []
    return [as_bytes(part.rows.to(_index_dtype(plan))), as_bytes(part.values.to(plan.summed))]


def _length(plan: ReductionPlan, rank: int) -> int:
    """Bytes of the rows of ``rank`` as :func:`_packed` writes them."""
    indices = plan.counts[rank] * _index_dtype(plan).itemsize
    values = plan.counts[rank] * prod(plan.row_shape) * plan.summed.itemsize
    return indices + -indices % 16 + values + -values % 16
