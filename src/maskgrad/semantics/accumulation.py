"""What meets at one place is combined: sums, products, means and extrema over the specified contributions.

By deletion: a contribution takes part if it is specified, and so does the old entry, unless it is left out
(``include_self=False``). Where no contribution arrives the old entry stays. Halves are combined in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.kernels.extrema import lowest
from maskgrad.patterns.eager import forward_mode_is_active
from maskgrad.semantics.entries import Entries, fill, filler_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: What halves are combined in.
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def add_up(old: Entries, new: Entries, add: Callable[..., Tensor], **scale: Any) -> Entries:
    """The specified contributions added to what is specified, by one of torch's functions that add by position.

    Args:
        old: What is there before.
        new: What is added to it.
        add: Called with the two, and with ``scale`` if it adds values; its result is one tensor.
        scale: ``alpha`` of ``index_add``.
    """
    kind = old.values.dtype
    values = add(*(_wide(fill(x, x.mask, 0)) for x in (old, new)), **scale)
    counts = add(old.mask.int(), new.mask.int())
    return Entries(values.to(kind), counts > 0)


def _wide(x: Tensor) -> Tensor:
    return x.to(WIDE.get(x.dtype, x.dtype))


class _Extremum(torch.autograd.Function):
    """Extremum of all that meets at a place; its gradient is shared equally among the specified that attain it.

    torch counts the old entry among those, even if it is left out, and so do fillers that stand for nothing.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        old: Tensor, known: Tensor, dim: int, index: Tensor, new: Tensor, arriving: Tensor, reduce: str
    ) -> Tensor:
        neutral = lowest(old.dtype, largest=reduce == "amax")
        start, brought = torch.where(known, old, neutral), torch.where(arriving, new, neutral)
        return torch.scatter_reduce(start, dim, index, brought, reduce)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        old, known, ctx.dim, index, new, arriving, _ = inputs
        ctx.save_for_backward(old, known, index, new, arriving, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        old, known, index, new, arriving, best = ctx.saved_tensors
        first = (known & (old == best)).to(grad.dtype)
        others = (arriving & (new == best.gather(ctx.dim, index))).to(grad.dtype)
        nobody = ~(known | torch.zeros_like(known).scatter_reduce(ctx.dim, index, arriving, "amax"))
        # a specified NaN equals nothing: torch's gradient is then 0 / 0 at all that meets there
        share = grad / torch.where(nobody, 1, first.scatter_add(ctx.dim, index, others))
        to_old = torch.where(known, first * share, 0)
        to_new = torch.where(arriving, others * share.gather(ctx.dim, index), 0)
        return to_old, None, None, None, to_new, None, None


def _products(start: Tensor, dim: int, index: Tensor, brought: Tensor) -> Tensor:
    """``scatter_reduce`` with "prod", of which PyTorch loses the tangents: by doubling, in log(n) steps."""
    size = index.shape[dim] if index.ndim else 0
    if not size:
        return start
    index, order = torch.sort(index, dim=dim, stable=True)
    brought = brought.gather(dim, order)
    step = 1
    while step < size:  # each entry becomes the product of the last 2 * step entries that meet at its place
        same = index.narrow(dim, step, size - step) == index.narrow(dim, 0, size - step)
        before = torch.where(same, brought.narrow(dim, 0, size - step), 1)
        ones = torch.ones_like(brought.narrow(dim, 0, step))
        brought = brought * torch.cat([ones, before], dim)
        step *= 2
    differs = index.narrow(dim, 1, size - 1) != index.narrow(dim, 0, size - 1)
    last = torch.cat([differs, torch.ones_like(index.narrow(dim, 0, 1), dtype=torch.bool)], dim)
    met = torch.zeros_like(start, dtype=torch.int32).scatter_add(dim, index, last.int()) > 0
    product = torch.zeros_like(start).scatter_add(dim, index, torch.where(last, brought, 0))
    return start * torch.where(met, product, 1)


def combine(x: Entries, dim: int, index: Tensor, source: Entries, reduce: str, include_self: bool) -> Entries:
    """``scatter_reduce``: ``reduce`` is "sum", "prod", "mean", "amax" or "amin"."""
    if source.values.shape != index.shape and source.values.ndim == index.ndim:
        # more may be brought than is written
        used = tuple([slice(size) for size in index.shape])
        source = Entries(source.values[used], source.mask[used])
    kind, old, new = x.values.dtype, _wide(x.values), _wide(source.values)
    known = x.mask if include_self else torch.zeros_like(x.mask)
    arrived = torch.zeros_like(old, dtype=torch.int32).scatter_add(dim, index, source.mask.int())
    if reduce in ("amax", "amin"):
        # A Function with a forward-mode derivative could not be compiled; torch's own shares with fillers too.
        compute: Any = _Extremum.forward if forward_mode_is_active() else _Extremum.apply
        values = compute(old, known, dim, index, new, source.mask, reduce)
    else:
        neutral = filler_as(old.dtype, 1 if reduce == "prod" else 0)
        start, brought = torch.where(known, old, neutral), torch.where(source.mask, new, neutral)
        if reduce == "prod" and forward_mode_is_active():
            values = _products(start, dim, index, brought)
        elif reduce == "prod":
            values = torch.scatter_reduce(start, dim, index, brought, reduce)
        else:  # the mean that torch would take counts fillers
            values = torch.scatter_add(start, dim, index, brought)
    if reduce == "mean":
        divisor = (arrived + known).clamp(min=1)
        exact = values.is_floating_point() or values.is_complex()
        values = values / divisor if exact else torch.div(values, divisor, rounding_mode="floor")
    values, mask = values.to(kind), known | (arrived > 0)
    if include_self:
        return Entries(values, mask)
    return Entries(torch.where(mask, values, x.values), mask | x.mask)
