"""Looking rows up with a gradient in a fixed number of slots, which no ``.grad`` holds: it is attached."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad import kernels
from maskgrad.gradients.attached import attached_gradient, keep_attached
from maskgrad.gradients.padded_rows import PaddedRows, sizes_may_vary
from maskgrad.nn.lookup import LookupTable, table_of
from maskgrad.semantics.bags import split_offsets

__all__ = [
    "add_padded_gradient",
    "checked_capacity",
    "keeps_slots",
    "notice_of_gradients",
    "padded_bags",
    "padded_lookup",
    "renormalized",
]


class _PaddedLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, rows: Tensor, received: Tensor, padding: int | None, number: int
    ) -> Tensor:
        ctx.save_for_backward(rows, received)
        ctx.height, ctx.padding, ctx.number = weight.shape[0], padding, number
        if not torch.compiler.is_compiling() and kernels.lookup_pays(weight, rows):
            return kernels.lookup_rows(weight, rows.reshape(-1)).view(*rows.shape, *weight.shape[1:])
        return F.embedding(rows, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        rows, received = ctx.saved_tensors
        rows = rows.reshape(-1).long()
        if ctx.padding is not None:
            rows = torch.where(rows == ctx.padding, ctx.height, rows)
        values = grad.reshape(-1, grad.shape[-1])
        if torch.compiler.is_compiling():
            torch.ops.maskgrad.add_padded_gradient(received, rows, values, ctx.number)
        else:
            if torch.is_grad_enabled():
                raise RuntimeError(
                    "a gradient in slots cannot be differentiated again (create_graph=True); give the table "
                    "sparse=False and no capacity, or leave its weight out of the derivative"
                )
            add_padded_gradient(table_of(ctx.number), rows, values)
        return None, None, None, None, None


def keeps_slots(table: Any, rows: Tensor) -> bool:
    """Whether the gradient of this look-up is kept in slots."""
    weight = table.weight
    if not (weight.requires_grad and torch.is_grad_enabled()):
        return False
    compiling = torch.compiler.is_compiling()
    if table.capacity is None and (compiling or not table.sparse or sizes_may_vary(weight.device)):
        return False
    if compiling:
        return weight.is_leaf and not torch.compiler.is_exporting()
    # A derivative that torch.func takes, or that goes on behind the weight, cannot be attached.
    return weight.is_leaf and not any(
        torch._C._functorch.is_functorch_wrapped_tensor(t) for t in (weight, rows)
    )


def notice_of_gradients(table: Any) -> Tensor | None:
    """What a compiled graph writes to, so that it counts as having an effect, if ``table`` has a capacity."""
    return None if table.capacity is None else torch.zeros((), dtype=torch.int64, device=table.weight.device)


def renormalized(table: Any, rows: Tensor) -> None:
    """Scale rows down to ``max_norm``, in place, as the look-ups of torch do."""
    if table.max_norm is not None:
        with torch.no_grad():
            torch.embedding_renorm_(
                table.weight, rows.reshape(-1).contiguous(), table.max_norm, table.norm_type
            )


def padded_lookup(table: Any, rows: Tensor, padding: int | None) -> Tensor:
    """Rows of ``table``; a backward pass attaches a :class:`maskgrad.PaddedRows` to its weight."""
    _check_places(table, rows.numel())
    received = rows if table.capacity is None else table._received
    found = _PaddedLookup.apply(table.weight, rows, received, padding, table._number)  # type: ignore[no-untyped-call]
    return cast("Tensor", found)


def padded_bags(
    table: Any, indices: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None
) -> Tensor:
    """Sums or means of bags, as ``F.embedding_bag`` has them, with the gradient in slots."""
    if per_sample_weights is not None:
        if indices.shape != per_sample_weights.shape:
            raise ValueError(
                f"embedding_bag: If per_sample_weights ({tuple(per_sample_weights.shape)}) is not None, then it must "
                f"have the same shape as the input ({tuple(indices.shape)})"
            )
        if table.mode != "sum":
            raise NotImplementedError(
                "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
                f"(got mode='{table.mode}'). Please open a feature request on GitHub."
            )
    starts = split_offsets(indices, offsets, table.include_last_offset)
    rows, padding = indices.reshape(-1), table.padding_idx
    found = padded_lookup(table, rows, padding)
    taken = torch.ones_like(rows, dtype=torch.bool) if padding is None else rows != padding
    wide = torch.promote_types(found.dtype, torch.float32)
    values = torch.where(taken.unsqueeze(-1), found, 0).to(wide)
    if per_sample_weights is not None:
        values = values * per_sample_weights.reshape(-1, 1)
    position = torch.arange(len(rows), device=rows.device)
    owner = torch.searchsorted(starts, position.to(starts.dtype), right=True) - 1
    number = len(starts) - 1
    owner = torch.where((owner >= 0) & (owner < number), owner, number)  # behind the last offset: in no bag
    sums = values.new_zeros(number + 1, values.shape[1]).index_add(0, owner, values)[:-1]
    if table.mode == "mean":
        count = sums.new_zeros(number + 1).index_add(0, owner, taken.to(wide))[:-1]
        sums = sums / count.clamp(min=1).unsqueeze(-1)
    return sums.to(found.dtype)


def _check_places(table: LookupTable, lookups: int) -> None:
    """ValueError if ``lookups`` may name more rows than the table has slots for."""
    capacity, height = table.capacity, table.weight.shape[0]
    if capacity is not None and min(lookups, height) > capacity:
        raise ValueError(
            f"{lookups} look-ups may name {min(lookups, height)} different rows, more than the table's "
            f"capacity={capacity}; make a table with a larger capacity ({height} rows always do), or give it fewer "
            "indices at a time"
        )


def add_padded_gradient(table: LookupTable | None, rows: Tensor, values: Tensor) -> None:
    """Add ``values`` (n, columns) at ``rows`` (n,) to the gradient attached to a table's weight.

    Raises:
        ValueError: there is no place left; nothing was added.
    """
    if table is None:  # it is gone, and its weight with it
        return
    gradient = PaddedRows(rows, values.detach(), table.weight.shape)
    present = attached_gradient(table.weight)
    if isinstance(present, PaddedRows):
        gradient = present + gradient
    elif present is not None:
        raise ValueError(
            f"the weight of {type(table).__name__} has an attached gradient already, a {type(present).__name__}, to "
            "which a table with a capacity cannot add; remove it before the backward pass, with "
            "mg.attach_gradient(table.weight, None)"
        )
    if table.capacity is not None:
        try:
            gradient = gradient.resized(table.capacity)
        except ValueError as error:
            raise ValueError(
                f"{error}. It is the sum of several backward passes: call optimizer.zero_grad() between steps"
            ) from None
    keep_attached(table.weight, gradient)


def checked_capacity(capacity: Any, dense: bool, reason: str) -> int | None:
    """``capacity`` as a number of slots, or None.

    Raises:
        TypeError: it is no integer.
        ValueError: it is below 1, or the gradient is ``dense``, for a ``reason``.
    """
    if capacity is None:
        return None
    if not isinstance(capacity, int) or isinstance(capacity, bool):
        raise TypeError(f"capacity must be an integer, the number of slots, found {type(capacity).__name__}")
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, found {capacity}")
    if dense:
        raise ValueError(
            f"capacity={capacity} is for sparse gradients, which {reason} rules out; leave one of them out"
        )
    return capacity


def _add_from_a_graph(received: Tensor, rows: Tensor, values: Tensor, number: int) -> None:
    received.add_(1)
    # copies, for a graph may use its memory again
    add_padded_gradient(table_of(number), rows.clone(), values.clone())


def _nothing(received: Tensor, rows: Tensor, values: Tensor, number: int) -> None: ...


# A recording of CUDA work would leave out what is done here in Python.
_TAGS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))
torch.library.define(
    "maskgrad::add_padded_gradient",
    "(Tensor(a!) received, Tensor rows, Tensor values, SymInt number) -> ()",
    tags=_TAGS,
)
torch.library.impl("maskgrad::add_padded_gradient", "default", _add_from_a_graph)
torch.library.register_fake("maskgrad::add_padded_gradient", _nothing)
