"""Contributions on their way: whole tensors that are added up in a ring, or lists of rows that go to everyone.

Whatever the number of slots, what travels together travels in few messages. Lists are merged in the order of the
ranks, so that every rank has the same sums, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.distributed.local_gradients import LocalGradient
from maskgrad.distributed.process_group import ProcessGroup, as_bytes, from_bytes
from maskgrad.distributed.reduction_plan import ReductionPlan
from maskgrad.gradients.attached import AnyGradient
from maskgrad.masked_tensor.tensor import of_entries
from maskgrad.sparse import prod

if TYPE_CHECKING:
    from maskgrad.distributed.exchange import Slot

__all__ = ["DenseTransfer", "Item", "SparseTransfer"]

_BUCKET_BYTES = 32 << 20
Item = tuple["Slot", LocalGradient, ReductionPlan]


class DenseTransfer:
    """Whole tensors, zero where a rank has nothing, added up in buckets; beside them, if need be, who has what."""

    def __init__(self, group: ProcessGroup, device: torch.device, items: list[Item]) -> None:
        self.items, self._group = items, group
        self._works: list[Any] = []
        self._totals: dict[int, Tensor] = {}
        self._counts: dict[int, Tensor] = {}
        buckets: list[list[Item]] = []
        filled = 0
        for item in sorted(items, key=lambda one: str(one[2].summed)):  # a stable sort: the same on all ranks
            slot, _, plan = item
            size = prod(slot.shape) * plan.summed.itemsize
            if not buckets or buckets[-1][0][2].summed is not plan.summed or filled + size > _BUCKET_BYTES:
                buckets.append([])
                filled = 0
            buckets[-1].append(item)
            filled += size
        for bucket in buckets:
            self._add_up(bucket, device)

    def _add_up(self, bucket: list[Item], device: torch.device) -> None:
        values, counts = [], []
        for slot, brought, plan in bucket:
            part = brought.with_leading(plan.leading, slot.shape)
            values.append(part.whole_values(slot.shape, plan.summed, slot.device).reshape(-1).to(device))
            if plan.partial:
                counts.append(_counted(slot, part, plan).reshape(-1).to(device))
        # Concatenation copies, also one tensor: the gradient itself must not change before all have answered.
        flat = torch.cat(values)
        self._group.add(flat, self._works)
        tally = torch.cat(counts) if counts else torch.empty(0, dtype=torch.int32)
        self._group.add(tally, self._works)
        sizes = [prod(slot.shape) for slot, _, _ in bucket]
        for (slot, _, _), total in zip(bucket, flat.split(sizes), strict=True):
            self._totals[id(slot)] = total
        partial = [(slot, _places(slot, plan)) for slot, _, plan in bucket if plan.partial]
        for (slot, _), count in zip(partial, tally.split([n for _, n in partial]), strict=True):
            self._counts[id(slot)] = count

    def finish(self) -> dict[int, AnyGradient]:
        """The results, by the identity of their slots."""
        self._group.wait(self._works)
        found: dict[int, AnyGradient] = {}
        for slot, _, plan in self.items:
            total = self._totals.pop(id(slot)).to(slot.device)
            count = self._counts.pop(id(slot)).to(slot.device) if plan.partial else None
            if plan.layout is torch.strided:
                count = None if count is None else count.view(slot.shape)
                values = plan.divided(total.view(slot.shape), count)
                found[id(slot)] = (
                    of_entries(values, count > 0) if plan.masked and count is not None else values
                )
                continue
            assert count is not None
            rows = count.nonzero().view(-1)
            values = total.view(len(count), *slot.shape[plan.leading :])[rows]
            found[id(slot)] = plan.of_rows(
                rows, plan.divided(values, _beside(count[rows], values)), slot.shape
            )
        return found


class SparseTransfer:
    """Lists of rows, all in one message from each rank to all."""

    def __init__(self, group: ProcessGroup, device: torch.device, items: list[Item]) -> None:
        self.items, self._group = items, group
        self._works: list[Any] = []
        message = torch.cat(
            [
                piece
                for slot, part, plan in items
                for piece in _packed(part.with_leading(plan.leading, slot.shape), slot, plan)
            ]
        ).to(device)
        lengths = [
            sum(_length(slot, plan, plan.counts[rank]) for slot, _, plan in items)
            for rank in range(group.size)
        ]
        longest = max(lengths)
        if longest * group.size > 2 * sum(lengths):  # padding would be most of what travels
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
        """The results, by the identity of their slots."""
        self._group.wait(self._works)
        found: dict[int, AnyGradient] = {}
        for slot, _, plan in self.items:
            rows, values = [], []
            row = tuple(slot.shape[plan.leading :])
            for rank, number in enumerate(plan.counts):
                listed, rest = from_bytes(self._messages[rank], _index_dtype(slot, plan), (number,))
                piece, self._messages[rank] = from_bytes(rest, plan.summed, (number, *row))
                rows.append(listed)
                values.append(piece)
            listed, piece = torch.cat(rows).long().to(slot.device), torch.cat(values).to(slot.device)
            number = prod(slot.shape[: plan.leading])
            distinct, total = kernels.merge_rows(listed, piece, number, "sum")
            count = None
            if plan.divisor == 0:
                _, count = kernels.merge_rows(listed, torch.ones_like(listed), number, "sum")
                count = _beside(count, total)
            found[id(slot)] = plan.of_rows(distinct, plan.divided(total, count), slot.shape)
        return found


def _places(slot: Slot, plan: ReductionPlan) -> int:
    """Of how many places it is counted which ranks specify them."""
    return prod(slot.shape if plan.layout is torch.strided else slot.shape[: plan.leading])


def _counted(slot: Slot, part: LocalGradient, plan: ReductionPlan) -> Tensor:
    if plan.layout is torch.strided:
        return part.specified(slot.shape, slot.device)
    number = _places(slot, plan)
    return (
        torch.zeros(number, dtype=torch.int32, device=slot.device)
        if part.rows is None
        else part.listed(number)
    )


def _beside(count: Tensor, values: Tensor) -> Tensor:
    """``count`` (m,) in a shape that broadcasts to ``values`` (m, *row)."""
    return count.view(-1, *(1,) * (values.dim() - 1))


def _index_dtype(slot: Slot, plan: ReductionPlan) -> torch.dtype:
    return torch.int32 if prod(slot.shape[: plan.leading]) < 2**31 else torch.int64


def _packed(part: LocalGradient, slot: Slot, plan: ReductionPlan) -> list[Tensor]:
    if part.rows is None or part.values is None:
        return [torch.empty(0, dtype=torch.uint8, device=slot.device)]
    return [as_bytes(part.rows.to(_index_dtype(slot, plan))), as_bytes(part.values.to(plan.summed))]


def _length(slot: Slot, plan: ReductionPlan, number: int) -> int:
    """Bytes of ``number`` rows as :func:`_packed` writes them."""
    indices = number * _index_dtype(slot, plan).itemsize
    values = number * prod(slot.shape[plan.leading :]) * plan.summed.itemsize
    return indices + -indices % 16 + values + -values % 16
