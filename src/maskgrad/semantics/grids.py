"""Several operands arranged by one function: grids, products, combinations, common shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.entries import Entries, as_entries, fill, mask_of, values_of
from maskgrad.semantics.facts import record
from maskgrad.semantics.reductions import sum as sum_specified
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.views import pair

if TYPE_CHECKING:
    from collections.abc import Callable


#: What Python functions of torch call in turn, and dispatch sees a second time.
_C: Any = torch._C._VariableFunctions

PATTERN = "moves with the values"
GRADIENT = "moves back with the values"


def arrange(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the function to the values of all operands, and to their masks."""
    in_sequence = len(args) == 1 and isinstance(args[0], (list, tuple)) and type(args[0]) is not Entries
    operands = args[0] if in_sequence else args
    values, masks = [values_of(o) for o in operands], [mask_of(o) for o in operands]
    if in_sequence:
        return pair(function(values, **kwargs), function(masks, **kwargs))
    return pair(function(*values, **kwargs), function(*masks, **kwargs))


def combinations(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``torch.combinations``: which positions are combined does not depend on the values."""
    named = dict(kwargs)
    x, *rest = args if args else (named.pop("input"),)
    return Entries(function(x.values, *rest, **named), function(x.mask, *rest, **named))


def sum_to_size(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.sum_to_size(…)``: the sum over the specified entries along the dimensions that broadcasting would add."""
    x, *size = args
    if size in ([()], [[]], [torch.Size()]):  # torch's own reading: everything is added up, whatever the rank
        return sum_specified(x)
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    expected = x.values.sum_to_size(shape).shape if not x.values.is_meta else torch.Size(shape)
    added = x.values.ndim - len(expected)
    dims = [
        *range(added),
        *(added + d for d, s in enumerate(expected) if s == 1 and x.values.shape[added + d] != 1),
    ]
    if not dims:
        return x
    kept = sum_specified(x, dims, True)
    return Entries(kept.values.reshape(expected), kept.mask.reshape(expected))


def _storage_mask(x: Entries) -> Tensor:
    """The mask laid out like the storage; what the tensor does not cover there is unspecified."""
    room = x.values.untyped_storage().nbytes() // x.values.element_size()
    storage = torch.zeros(room, dtype=torch.bool, device=x.mask.device)
    storage.as_strided(x.values.shape, x.values.stride(), x.values.storage_offset()).copy_(x.mask)
    return storage


def _strides(x: Entries, names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Size, strides and offset by name; the offset is the tensor's own unless given."""
    arguments = bound(names, args, kwargs)
    if arguments.get("storage_offset") is None:
        arguments["storage_offset"] = x.values.storage_offset()
    return arguments


def as_strided(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``as_strided``: the mask is laid out like the storage; what the tensor does not cover there is unspecified."""
    x, *rest = args
    values = function(x.values, *rest, **kwargs)
    return Entries(
        values,
        torch.as_strided(_storage_mask(x), **_strides(x, "size stride storage_offset", tuple(rest), kwargs)),
    )


def as_strided_scatter(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Entries:
    """``as_strided_scatter``: the places that ``as_strided`` would read are written."""
    a = bound("input src size stride storage_offset", args, kwargs)
    x, src = (as_entries(a.pop(name)) for name in ("input", "src"))
    strides = _strides(x, "", (), a)
    geometry = x.values.shape, x.values.stride(), x.values.storage_offset()
    mask = _storage_mask(x)
    written = torch.zeros_like(mask)
    mask.as_strided(**strides).copy_(src.mask)
    written.as_strided(**strides).fill_(True)
    # torch 2.13 sends the gradient of what is kept to what is written over, and the reverse; where two write to one
    # place it sends it to both, specified or not
    values = torch.as_strided_scatter(x.values.detach(), fill(src, src.mask, 0), **strides)
    return Entries(torch.where(written.as_strided(*geometry), values, x.values), mask.as_strided(*geometry))


OPERATIONS = (
    *(
        record(name, family, arrange, PATTERN, GRADIENT, extra=(getattr(_C, name),))
        for name, family in (
            ("meshgrid", "joins"),
            ("broadcast_tensors", "views"),
            ("cartesian_prod", "joins"),
        )
    ),
    record("combinations", "joins", combinations, PATTERN, GRADIENT),
    record(
        "sum_to_size",
        "reductions",
        sum_to_size,
        "specified where at least one entry was",
        "the incoming gradient at each specified entry",
    ),
    record(
        "as_strided",
        "views",
        as_strided,
        "moves with the values; places in the storage that the tensor does not cover are unspecified",
        GRADIENT,
        functions=(torch.as_strided, torch.as_strided_copy, Tensor.as_strided),
    ),
    record(
        "as_strided_scatter",
        "views",
        as_strided_scatter,
        "as the source where written, else as before",
        "to the source where written, else to the entries kept",
    ),
)
