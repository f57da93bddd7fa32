"""Lookups of rows: with an attached gradient of padded rows; or in one copy, with a COO gradient."""

from __future__ import annotations

import itertools
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from maskgrad import kernels
from maskgrad.errors import UnsupportedLayoutError
from maskgrad.gradients.attached import attached_gradient, keep_attached
from maskgrad.gradients.padded_rows import PaddedRows, supports_dynamic_shapes
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.nn.lookup import LookupTable, table_of
from maskgrad.optim.graphs import EFFECT_TAGS
from maskgrad.semantics.embeddings import renormalise, split_offsets

__all__ = [
    "add_padded_gradient",
    "has_padded_gradient",
    "padded_bags",
    "padded_lookup",
    "sparse_lookup",
]

# A compiled backward pass keeps only code that a gradient depends on. So the operator that attaches a gradient
# returns a zero, the gradient of this tensor.
_EFFECT = torch.zeros((), requires_grad=True)
_CALLS = itertools.count()


class _PaddedLookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        rows: Tensor,
        known: Tensor | None,
        effect: Tensor | None,  # noqa: ARG004
        padding: int | None,
        number: int,
        call: int,
    ) -> Tensor:
        ctx.save_for_backward(rows, known)
        ctx.height, ctx.padding, ctx.number, ctx.call = weight.shape[0], padding, number, call
        if not torch.compiler.is_compiling() and kernels.lookup_rows.is_compiled_for(weight, rows):
            return kernels.lookup_rows(weight, rows.reshape(-1)).view(*rows.shape, *weight.shape[1:])
        return F.embedding(rows, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, known = ctx.saved_tensors
        rows = rows.reshape(-1).long()
        if ctx.padding is not None:
            rows = torch.where(rows == ctx.padding, ctx.height, rows)
        if known is not None:
            rows = torch.where(known.reshape(-1), rows, ctx.height)
        values = grad.reshape(-1, grad.shape[-1])
        if torch.compiler.is_compiling():
            effect = torch.ops.maskgrad.add_padded_gradient(rows, values, ctx.number, ctx.call)
            return None, None, None, effect, None, None, None
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a gradient of padded rows cannot be differentiated again (create_graph=True); give the table "
                "sparse=False and no capacity, or exclude its weight from the derivative"
            )
        if _is_asked_for(ctx.next_functions[0][0]):
            dense = PaddedRows(rows, values, torch.Size((ctx.height, values.shape[-1]))).to_dense()
            return dense, None, None, None, None, None, None
        add_padded_gradient(table_of(ctx.number), rows, values)
        return None, None, None, None, None, None, None


def _is_asked_for(leaf: Any) -> bool:
    """Return whether this is ``torch.autograd.grad`` with respect to the leaf itself, which attaches nothing."""
    try:
        torch._C._will_engine_execute_node(leaf)
    except RuntimeError:  # PyTorch supports this for leaves in backward() only
        return True
    return False


def _number_of_call() -> int:
    """A distinct number for each lookup in a graph, so that equal ones are not merged."""
    return next(_CALLS)


# As torch.compiler.assume_constant_result, which would import the compiler.
_number_of_call._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_padded_gradient(table: Any, rows: Tensor) -> bool:
    """Return whether the gradient of this lookup has padded rows."""
    weight = table.weight
    if not (weight.requires_grad and torch.is_grad_enabled()):
        return False
    compiling = torch.compiler.is_compiling()
    if table.capacity is None and (compiling or not table.sparse or supports_dynamic_shapes(weight.device)):
        return False
    if compiling:
        return weight.is_leaf and not torch.compiler.is_exporting()
    # It cannot be attached under torch.func, or to a weight that is not a leaf.
    given = rows._values if isinstance(rows, MaskedTensor) else rows
    return weight.is_leaf and not any(
        torch._C._functorch.is_functorch_wrapped_tensor(t) for t in (weight, given)
    )


def padded_lookup(table: Any, rows: Tensor, padding: int | None) -> Tensor:
    """Rows of ``table``; a backward pass attaches a :class:`maskgrad.PaddedRows` to its weight."""
    indices, known = _indices_and_mask(rows)
    found = _padded_rows(table, indices, known, padding)
    return found if known is None else masked(found, known.unsqueeze(-1))


def _indices_and_mask(rows: Tensor | MaskedTensor) -> tuple[Tensor, Tensor | None]:
    """Valid indices, and a mask of the specified ones (None: all)."""
    if not isinstance(rows, MaskedTensor):
        return rows, None
    if rows.layout not in (torch.strided, torch.jagged):
        raise UnsupportedLayoutError("torch.nn.functional.embedding", rows.layout)
    return rows.filled(0), rows.mask


def _padded_rows(table: Any, rows: Tensor, known: Tensor | None, padding: int | None) -> Tensor:
    _check_capacity(table, rows.numel())
    if table.max_norm is not None:
        renormalise(table.weight, rows, known, table.max_norm, table.norm_type)
    weight, number = table.weight, table._number
    if torch.compiler.is_compiling():
        found = _PaddedLookup.apply(weight, rows, known, _EFFECT, padding, number, _number_of_call())  # type: ignore[no-untyped-call]
    else:
        found = _PaddedLookup.apply(weight, rows, known, None, padding, number, 0)  # type: ignore[no-untyped-call]
    return cast("Tensor", found)


def padded_bags(
    table: Any, indices: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None
) -> Tensor:
    """Sums or means of bags, as of ``F.embedding_bag``, with a gradient of padded rows."""
    indices, known = _indices_and_mask(indices)
    if per_sample_weights is not None:
        per_sample_weights, weighed = _indices_and_mask(per_sample_weights)
        known = weighed if known is None else known if weighed is None else known & weighed
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
    known = None if known is None else known.reshape(-1)
    found = _padded_rows(table, rows, known, padding)
    taken = torch.ones_like(rows, dtype=torch.bool) if padding is None else rows != padding
    taken = taken if known is None else taken & known
    wide = torch.promote_types(found.dtype, torch.float32)
    values = torch.where(taken.unsqueeze(-1), found, 0).to(wide)
    if per_sample_weights is not None:
        values = values * per_sample_weights.reshape(-1, 1)
    number = len(starts) - 1
    # Number of bags begun, without searchsorted, which PyTorch/XLA runs on the host. The end of the last one is
    # ignored, as in PyTorch.
    begun = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
    owner = (
        begun.index_add(0, starts[:-1].long(), torch.ones_like(starts[:-1], dtype=torch.int64)).cumsum(0)[:-1]
        - 1
    )
    sums = values.new_zeros(number + 1, values.shape[1]).index_add(0, owner, values)[:-1]
    if table.mode == "mean":
        count = sums.new_zeros(number + 1).index_add(0, owner, taken.to(wide))[:-1]
        sums = sums / count.clamp(min=1).unsqueeze(-1)
    sums = sums.to(found.dtype)
    if known is None:
        return sums
    some = (
        torch.zeros(number + 1, dtype=torch.int64, device=rows.device).index_add(0, owner, known.long()) > 0
    )
    return masked(sums, some[:-1].unsqueeze(-1))


def _check_capacity(table: LookupTable, lookups: int) -> None:
    """Raise a ValueError if ``lookups`` may refer to more rows than the table's capacity."""
    capacity, height = table.capacity, table.weight.shape[0]
    if capacity is not None and min(lookups, height) > capacity:
        raise ValueError(
            f"{lookups} lookups may refer to {min(lookups, height)} different rows, more than the table's "
            f"capacity={capacity}; make a table with a larger capacity ({height} rows always suffice), or pass fewer "
            "indices at a time"
        )


def add_padded_gradient(table: LookupTable | None, rows: Tensor, values: Tensor) -> None:
    """Add ``values`` (n, columns) at ``rows`` (n,) to the gradient attached to a table's weight.

    Raises:
        ValueError: the sum has more rows than ``capacity``; nothing is added then.
    """
    if table is None:  # deleted together with its weight
        return
    gradient = PaddedRows(rows, values.detach(), table.weight.shape)
    present = attached_gradient(table.weight)
    if isinstance(present, PaddedRows):
        gradient = present + gradient
    elif present is not None or table.weight.grad is not None:
        kind = type(table.weight.grad if present is None else present).__name__
        raise ValueError(
            f"the weight of {type(table).__name__} has a gradient already, a {kind}, to which a table with a capacity "
            "cannot add; set table.weight.grad = None before the backward pass, or make the table without a capacity"
        )
    if table.capacity is not None:
        try:
            gradient = gradient.resized(table.capacity)
        except ValueError as error:
            raise ValueError(
                f"{error}. It is the sum of several backward passes: call optimizer.zero_grad() between steps"
            ) from None
    keep_attached(table.weight, gradient)


class _SparseLookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape, ctx.padding = weight.shape, padding
        return kernels.lookup_rows(weight, rows.reshape(-1)).view(*rows.shape, *weight.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        rows, values = rows.reshape(-1).long(), grad.reshape(-1, *ctx.shape[1:])
        if ctx.padding is not None:
            kept = (rows != ctx.padding).nonzero().view(-1)
            if len(kept) < len(rows):
                rows, values = rows[kept], values[kept]
        # The indices were checked when they were looked up.
        gradient = torch.sparse_coo_tensor(rows[None], values, ctx.shape, check_invariants=False)
        return gradient, None, None


def sparse_lookup(weight: Tensor, rows: Tensor, padding: int | None) -> Tensor | None:
    """As ``F.embedding(rows, weight, padding, sparse=True)``; None where that is faster."""
    if not kernels.lookup_rows.is_compiled_for(weight, rows):
        return None
    return _SparseLookup.apply(weight, rows, padding)  # type: ignore[no-any-return,no-untyped-call]


def _add_from_a_graph(rows: Tensor, values: Tensor, number: int, call: int) -> Tensor:
    table = table_of(number)
    if table is not None:
        leaf = get_gradient_edge(table.weight).node
        if _is_asked_for(leaf):
            raise RuntimeError(
                "torch.autograd.grad for the weight of a table with a capacity, through a graph of torch.compile: its "
                "gradient is attached by backward() only. Call the model without torch.compile, or backward()"
            )
        if not torch._C._will_engine_execute_node(leaf):  # torch.autograd.grad with respect to other tensors
            return torch.zeros(())
    # copies, because a graph may reuse its memory
    add_padded_gradient(table, rows.clone(), values.clone())
    return torch.zeros(())


torch.library.define(
    "maskgrad::add_padded_gradient",
    "(Tensor rows, Tensor values, SymInt number, int call) -> Tensor",
    tags=EFFECT_TAGS,
)
torch.library.impl("maskgrad::add_padded_gradient", "default", _add_from_a_graph)
torch.library.register_fake("maskgrad::add_padded_gradient", lambda *_: torch.zeros(()))
