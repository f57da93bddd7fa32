"""Extrema of the specified entries, their positions, and their gradients.

A constant of -inf under the mask cannot be told from a specified -inf, neither in the gradient
(which is shared among equals) nor as a position. So the extremum's value comes from filling, and who
attains it is asked of the specified entries alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.patterns.eager import forward_mode_is_active
from maskgrad.semantics.dimensions import as_dim, as_dims, mask_of_any
from maskgrad.semantics.entries import Entries, filler_as, intersection, specified
from maskgrad.semantics.entries import fill as fill_operand
from maskgrad.semantics.facts import Operation, functions_named
from maskgrad.semantics.signatures import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["OPERATIONS"]

PATTERN = "specified where at least one entry was"


def lowest(dtype: torch.dtype, largest: bool) -> float | int | bool:
    """The value that never wins: the identity of maximum (of minimum if not ``largest``)."""
    if dtype.is_complex:
        raise RuntimeError(f"extrema are not defined for complex dtypes, found {dtype}")
    if dtype == torch.bool:
        return not largest
    if dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if largest else limits.max


class _Extremum(torch.autograd.Function):
    """Extremum over ``dims`` whose gradient is shared equally among the specified entries that attain it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, mask: Tensor, dims: tuple[int, ...], largest: bool) -> Tensor:
        neutral = torch.where(mask, values, lowest(values.dtype, largest))
        return neutral.amax(dims, keepdim=True) if largest else neutral.amin(dims, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, mask, ctx.dims, _ = inputs
        ctx.save_for_backward(values, mask, output)

    @staticmethod
    def _share(ctx: Any) -> Tensor:
        values, mask, output = ctx.saved_tensors
        winners = mask & (values.detach() == output.detach())
        share = winners.to(output.dtype)
        count = share.sum(ctx.dims, keepdim=True)
        # a specified NaN equals nothing: torch's gradient is then 0 / 0 at every entry
        empty = ~mask.any(ctx.dims, keepdim=True)
        return torch.where(mask, share / torch.where(empty, 1, count), 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad * _Extremum._share(ctx), None, None, None


def _extremum(input: Entries, dim: Any, keepdim: bool, largest: bool) -> Entries:
    dims = as_dims(dim, input.values.ndim)
    if not dims:
        return input
    # A Function with a forward-mode derivative could not be compiled; torch's own shares with equals under the mask.
    compute: Any = _Extremum.forward if forward_mode_is_active() else _Extremum.apply
    values: Tensor = compute(input.values, input.mask, dims, largest)
    return Entries(values if keepdim else values.squeeze(dims), mask_of_any(input.mask, dims, keepdim))


def amax(input: Entries, dim: Any = (), keepdim: bool = False) -> Entries:
    """Largest specified entry; its gradient is shared among equals."""
    return _extremum(input, dim, keepdim, True)


def amin(input: Entries, dim: Any = (), keepdim: bool = False) -> Entries:
    """Smallest specified entry; its gradient is shared among equals."""
    return _extremum(input, dim, keepdim, False)


def aminmax(input: Entries, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Smallest and largest specified entry."""
    parts = [_extremum(input, dim, keepdim, largest) for largest in (False, True)]
    return _structure(torch.return_types.aminmax, parts)


def _structure(kind: Any, parts: list[Entries]) -> Any:
    """One of torch's named tuples, holding entries instead of tensors until dispatch wraps them."""
    return kind(parts)


def first_winner(input: Entries, dim: int, largest: bool) -> Tensor:
    """Position along ``dim`` (kept) of the first specified entry that attains the extremum; NaN wins, as in torch."""
    values, mask = input
    neutral = torch.where(mask, values.detach(), lowest(values.dtype, largest))
    best = neutral.amax(dim, keepdim=True) if largest else neutral.amin(dim, keepdim=True)
    winners = mask & ((neutral == best) | (neutral != neutral))
    return winners.to(torch.uint8).argmax(dim, keepdim=True)


def _position(input: Entries, dim: int | None, keepdim: bool, largest: bool) -> Entries:
    if dim is None:
        flat = Entries(input.values.reshape(-1), input.mask.reshape(-1))
        index = first_winner(flat, 0, largest)
        shape = (1,) * input.values.ndim if keepdim else ()
        return Entries(index.reshape(shape), flat.mask.any().reshape(shape))
    if input.values.ndim == 0:
        as_dim(dim, 0)
        return Entries(torch.zeros_like(input.values, dtype=torch.int64), input.mask)
    index = first_winner(input, dim, largest)
    return Entries(index if keepdim else index.squeeze(dim), input.mask.any(dim, keepdim=keepdim))


def argmax(input: Entries, dim: int | None = None, keepdim: bool = False) -> Entries:
    """Position, counted in the original tensor, of the first largest specified entry."""
    return _position(input, dim, keepdim, True)


def argmin(input: Entries, dim: int | None = None, keepdim: bool = False) -> Entries:
    """Position, counted in the original tensor, of the first smallest specified entry."""
    return _position(input, dim, keepdim, False)


def _extremum_or_pair(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], largest: bool
) -> Any:
    """``torch.max`` in its three forms: of everything, along one dimension (with positions), of two tensors."""
    names = {"axis": "dim", "keepdims": "keepdim"}
    kwargs = {names.get(key, key): value for key, value in kwargs.items()}
    second = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("dim"))
    if isinstance(second, (Entries, torch.Tensor)):
        mask = intersection((*args, *kwargs.values()))
        assert mask is not None
        filled = [fill_operand(a, mask, 1) for a in (*args, *kwargs.values())]
        return specified((torch.maximum if largest else torch.minimum)(*filled), mask)
    arguments = dict(zip(("input", "dim", "keepdim"), args, strict=False)) | kwargs
    input, dim = arguments["input"], arguments.get("dim")
    if dim is None:
        return _extremum(input, None, False, largest)
    keepdim = arguments.get("keepdim", False)
    kind = torch.return_types.max if largest else torch.return_types.min
    if input.values.ndim == 0:
        return _structure(kind, [input, _position(input, dim, keepdim, largest)])
    index = first_winner(input, dim, largest)
    values = torch.where(input.mask, input.values, filler_as(input.values.dtype, 0)).gather(dim, index)
    mask = input.mask.any(dim, keepdim=True)
    pair = [
        Entries(part if keepdim else part.squeeze(dim), mask if keepdim else mask.squeeze(dim))
        for part in (values, index)
    ]
    return _structure(kind, pair)


def max(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Largest specified entry, along a dimension with its position, or the larger of two tensors."""
    return _extremum_or_pair(function, args, kwargs, True)


def min(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Smallest specified entry, along a dimension with its position, or the smaller of two tensors."""
    return _extremum_or_pair(function, args, kwargs, False)


def _record(name: str, body: Callable[..., Any], identity: str, gradient: str) -> Operation:
    functions, _, methods = functions_named(name)
    return Operation(
        name, "reductions", functions, body, PATTERN, gradient, identity=identity, methods=methods
    )


SHARED = "shared equally among the specified entries that attain it"
OPERATIONS: tuple[Operation, ...] = (
    _record("amax", named(amax), "-inf", SHARED),
    _record("amin", named(amin), "inf", SHARED),
    _record("aminmax", named(aminmax), "inf, -inf", SHARED),
    _record("argmax", named(argmax), "-inf", "none"),
    _record("argmin", named(argmin), "inf", "none"),
    _record("max", max, "-inf", f"to the first winner along dim; without dim {SHARED}"),
    _record("min", min, "inf", f"to the first winner along dim; without dim {SHARED}"),
)
