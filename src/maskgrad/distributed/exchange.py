"""One exchange: all ranks contribute gradients of any kind, and all get their sum, of one kind.

Three steps, each of which starts collectives without waiting for them: every rank describes its contributions
(``__init__``), contributions are sent (:meth:`Exchange.send`), results are assembled (:meth:`Exchange.finish`).
Each step depends only on the descriptions of all ranks, so that all start the same collectives in the same
order. A rank whose gradients have an error says so in the first message, and all ranks raise.

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

__all__ = ["Exchange", "NamedGradient", "Op", "Transport"]

Op = Literal["sum", "avg", "mean"]
Transport = Literal["auto", "dense", "sparse"]

_BUCKET_BYTES = 32 << 20
_HEAD = 4
_FIRST = 64
"""Number of gradients that the first message describes; its length must be known before any comparison."""


class NamedGradient(NamedTuple):
    """One gradient of an exchange; None if this rank has none."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    gradient: AnyGradient | None


class Exchange:
    """Several gradients, exchanged together; they have the same order on all ranks.

    Args:
        gradients: those of this rank.
        group: the ranks.
        op: ``"sum"``; ``"avg"``, divided by the number of ranks; ``"mean"``, by that of ranks that specify the entry.
        transport: how sparse gradients are sent.
        error: error of this rank, if any.
        away: whether this rank has no further input, and takes part only for the others.
        divide_by_present: whether ``"avg"`` excludes ranks that are away.
    """

    def __init__(
        self,
        gradients: Sequence[NamedGradient],
        group: ProcessGroup,
        op: Op = "sum",
        transport: Transport = "auto",
        error: Exception | None = None,
        away: bool = False,
        divide_by_present: bool = False,
    ) -> None:
        self.gradients, self.group, self.op, self.transport = gradients, group, op, transport
        self._divide_by_present = divide_by_present
        self._plan = (
            f"{group.what} op={op!r} exchange={transport!r} of {len(gradients)} tensors: "
            + "; ".join(f"{g.name} {tuple(g.shape)} {g.dtype} {g.device.type}" for g in gradients)
        )
        self._error = error
        parts: list[tuple[GradientFacts, Gradient | None]] = [(GradientFacts(), None) for _ in gradients]
        if error is None:
            with Postponed() as postponed:
                parts = [local_gradient(g.gradient, g.shape, g.name) for g in gradients]
            self._error = postponed.error
        self._parts = [part for _, part in parts]
        self._works: list[Any] = []
        self._sent: list[_DenseTransfer | _SparseTransfer] = []
        numbers = [n for facts, _ in parts for n in facts]
        first = numbers[: _FIRST * len(GradientFacts._fields)]
        head = [int(self._error is not None), digest(self._plan), int(away), len(gradients)]
        padding = [0] * (_FIRST * len(GradientFacts._fields) - len(first))
        message = torch.tensor(head + first + padding, dtype=torch.int64, device=group.device)
        self._rest = numbers[len(first) :]
        self._gathered = group.gather(message, self._works)

    def send(self) -> None:
        """Receive the descriptions of the other ranks, and send this rank's contribution; or raise on all ranks."""
        self.group.wait(self._works)
        gathered = self._gathered.tolist()
        if any(row[0] or row[1] != gathered[0][1] for row in gathered):
            check_consistent(self.group, self._plan, self._error)
        numbers = [row[_HEAD:] for row in gathered]
        if self._rest:
            rest = torch.tensor(self._rest, dtype=torch.int64, device=self.group.device)
            numbers = [
                row + more for row, more in zip(numbers, self.group.gather(rest).tolist(), strict=True)
            ]
        width, present = len(GradientFacts._fields), self.group.size
        if self._divide_by_present:
            present -= sum(row[2] for row in gathered)
        self.reduction_plans = [
            reduction_plan(
                [GradientFacts(*row[i * width : (i + 1) * width]) for row in numbers],
                gradient.shape,
                self.op,
                self.transport,
                present,
            )
            for i, gradient in enumerate(self.gradients)
        ]
        items: dict[tuple[str, bool], list[_Item]] = {}
        for number, (gradient, part, plan) in enumerate(
            zip(self.gradients, self._parts, self.reduction_plans, strict=True)
        ):
            if plan is not None:
                key = str(self.group.transport(gradient.device)), plan.listed
                finer = None if part is None else part.finer(plan.leading)
                item = _Item(number, gradient.device, finer, plan)
                items.setdefault(key, []).append(item)
        for device, listed in sorted(items):
            transfer = _SparseTransfer if listed else _DenseTransfer
            self._sent.append(transfer(self.group, torch.device(device), items[device, listed]))

    def finish(self) -> list[AnyGradient | None]:
        """The results, each of one kind and equal bit for bit on all ranks; None if no rank had any."""
        found: dict[int, AnyGradient] = {}
        for transfer in self._sent:
            found.update(transfer.finish())
        return [found.get(number) for number in range(len(self.gradients))]


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
    """Dense tensors, zero if a rank has none, summed in buckets; with counts of the ranks that specify entries."""

    def __init__(self, group: ProcessGroup, device: torch.device, items: list[_Item]) -> None:
        self._group = group
        self._works: list[Any] = []
        self._buckets: list[tuple[list[_Item], Tensor, Tensor]] = []
        bucket: list[_Item] = []
        filled = 0
        for item in sorted(items, key=lambda one: str(one.plan.summed)):  # stable: the same on all ranks
            size = prod(item.plan.shape) * item.plan.summed.itemsize
            if bucket and (bucket[-1].plan.summed is not item.plan.summed or filled + size > _BUCKET_BYTES):
                self._add_up(bucket, device)
                bucket, filled = [], 0
            bucket.append(item)
            filled += size
        self._add_up(bucket, device)

    def _add_up(self, bucket: list[_Item], device: torch.device) -> None:
        values = [item.whole().to(device) for item in bucket]
        counts = [item.specified().to(device) for item in bucket if item.plan.partial]
        # Concatenation copies, also one tensor: the gradient itself must not change before all have responded.
        flat = torch.cat(values)
        self._group.add(flat, self._works)
        count = torch.cat(counts) if counts else torch.empty(0, dtype=torch.int32)
        self._group.add(count, self._works)
        self._buckets.append((bucket, flat, count))

    def finish(self) -> dict[int, AnyGradient]:
        """The results by index."""
        self._group.wait(self._works)
        found: dict[int, AnyGradient] = {}
        for bucket, flat, count in self._buckets:
            totals = flat.split([prod(item.plan.shape) for item in bucket])
            counts = iter(count.split([item.plan.number_of_rows for item in bucket if item.plan.partial]))
            for (number, device, _, plan), total in zip(bucket, totals, strict=True):
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
        longest = max(lengths)
        if longest * group.size > 2 * sum(lengths):  # padding would be most of the message
            self._messages = [
                message if rank == group.rank else message.new_empty(length)
                for rank, length in enumerate(lengths)
            ]
            for rank, one in enumerate(self._messages):
                group.send_from(rank, one, self._works)
        else:
            padded = torch.nn.functional.pad(message, (0, longest - len(message)))
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
            distinct, total = kernels.merge_rows(listed, piece, plan.number_of_rows, "sum")
            count = None
            if plan.divisor == 0:
                _, count = kernels.merge_rows(listed, torch.ones_like(listed), plan.number_of_rows, "sum")
            found[gradient] = plan.of_rows(distinct, total, count)
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
