"""Views and rearrangements: applied to values and pattern together.

The same function is applied to the values and to the mask, so that a view of the values stays a view
that shares their storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.semantics.entries import Entries, Operand, as_entries, fill, values_of
from maskgrad.semantics.facts import Operation, as_property, of_rule, record
from maskgrad.semantics.signatures import bound, plain_arguments

PATTERN = "moves with the values"
GRADIENT = "moves back with the values"
#: Functions that read only the shape of further operands.
LENDING_SHAPE = frozenset({"expand_as", "reshape_as", "view_as"})


def pair(values: Any, mask: Any) -> Any:
    """Zip the results of a function applied to values and to mask: entries, or a sequence of them."""
    if isinstance(values, Tensor):
        return Entries(values, mask)
    return type(values)(pair(v, m) for v, m in zip(values, mask, strict=True))


def rearrange(function: Callable[..., Any], input: Operand, *args: Any, **kwargs: Any) -> Any:
    """Apply the called function to the values and to the mask."""
    x, rest, named = _without_masks(function, input, args, kwargs)
    if not isinstance(x, Entries):
        return function(x, *rest, **named)
    return pair(function(x.values, *rest, **named), function(x.mask, *rest, **named))


def _without_masks(
    function: Callable[..., Any], x: Operand, rest: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Operand, list[Any], dict[str, Any]]:
    """The operand, and the arguments: tensors used for their shape, or plain numbers and sizes."""
    if getattr(function, "__name__", "") in LENDING_SHAPE:
        return as_entries(x), [values_of(a) for a in rest], {name: values_of(a) for name, a in kwargs.items()}
    return x, *plain_arguments(rest, kwargs)


def repeat_interleave(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With a tensor and counts a view; with counts only, plain positions."""
    given = bound("input repeats dim", args, kwargs)
    if "input" not in given or "repeats" not in given:
        counts, named = plain_arguments(args, kwargs)
        return function(*counts, **named)
    return rearrange(function, given.pop("input"), **given)


def view(function: Callable[..., Any], input: Operand, *args: Any, **kwargs: Any) -> Entries:
    """``view`` to a shape: the values must be viewable, an expanded mask is copied if necessary."""
    x, rest, named = _without_masks(function, input, args, kwargs)
    if not isinstance(x, Entries):
        return function(x, *rest, **named)  # type: ignore[no-any-return]
    values = function(x.values, *rest, **named)
    target = rest[0] if rest else named.get("dtype")
    if isinstance(target, torch.dtype):
        if values.shape != x.values.shape:
            raise TypeError(
                f"view(dtype) of a MaskedTensor needs a dtype of the same size, {x.values.element_size()} bytes, "
                f"found {target}; several entries would share one mask bit. Use view before masking the data"
            )
        return Entries(values, x.mask)
    return Entries(values, x.mask.reshape(values.shape))


def at_least(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``atleast_2d`` and similar: any number of operands, each separately; a sequence gives a tuple."""
    parts = args[0] if len(args) == 1 and not isinstance(args[0], Entries) else args
    results = tuple([rearrange(function, as_entries(part), **kwargs) for part in parts])
    return results[0] if parts is args and len(args) == 1 else results


def complex_view(function: Callable[..., Any], input: Entries) -> Entries:
    """``view_as_real`` and ``view_as_complex``: the two parts of a number share its mask."""
    values = function(input.values)
    if values.is_complex():
        return Entries(values, input.mask.all(-1))
    return Entries(values, input.mask.unsqueeze(-1).expand(values.shape))


def _storage_mask(x: Entries) -> Tensor:
    """The mask in the layout of the storage; unspecified where the tensor does not cover it."""
    room = x.values.untyped_storage().nbytes() // x.values.element_size()
    storage = torch.zeros(room, dtype=torch.bool, device=x.mask.device)
    storage.as_strided(x.values.shape, x.values.stride(), x.values.storage_offset()).copy_(x.mask)
    return storage


def as_strided(
    function: Callable[..., Any], input: Entries, size: Any, stride: Any, storage_offset: int | None = None
) -> Entries:
    """``as_strided``: the mask gets the layout of the storage; the offset defaults to the tensor's own."""
    values = function(input.values, size, stride, storage_offset)
    offset = input.values.storage_offset() if storage_offset is None else storage_offset
    return Entries(values, torch.as_strided(_storage_mask(input), size, stride, offset))


def as_strided_scatter(
    input: Operand, src: Operand, size: Any, stride: Any, storage_offset: int | None = None
) -> Entries:
    """``as_strided_scatter``: writes the positions that ``as_strided`` would read."""
    x, source = as_entries(input), as_entries(src)
    offset = x.values.storage_offset() if storage_offset is None else storage_offset
    own, strides = (x.values.shape, x.values.stride(), x.values.storage_offset()), (size, stride, offset)
    mask = _storage_mask(x)
    written = torch.zeros_like(mask)
    mask.as_strided(*strides).copy_(source.mask)
    written.as_strided(*strides).fill_(True)
    # torch 2.13 swaps the gradients of kept and of overwritten entries; with two writes to one
    # position it passes the gradient to both, specified or not
    values = torch.as_strided_scatter(x.values.detach(), fill(source, source.mask, 0), *strides)
    return Entries(torch.where(written.as_strided(*own), values, x.values), mask.as_strided(*own))


def _record(name: str, body: Callable[..., Any] = rearrange, **facts: Any) -> Operation:
    return record(name, "views", body, PATTERN, GRADIENT, **facts)


#: With synonyms, those that use the padded form for jagged entries.
ON_PADDED = """
    broadcast_to expand expand_as reshape reshape_as view_as flatten ravel unflatten squeeze unsqueeze
    t transpose|swapaxes|swapdims permute movedim|moveaxis select narrow diagonal
    flip fliplr flipud rot90 roll repeat tile
    chunk unsafe_chunk split unsafe_split split_with_sizes unsafe_split_with_sizes tensor_split unbind
"""
REARRANGEMENTS = """
    expand_copy view_copy squeeze_copy unsqueeze_copy t_copy transpose_copy permute_copy adjoint
    select_copy narrow_copy slice_copy slice_inverse split_with_sizes_copy hsplit vsplit dsplit unbind_copy
    diagonal_copy alias_copy unfold_copy detach detach_copy
    pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
"""
OPERATIONS = (
    *(
        found
        for names, padded in ((ON_PADDED, "mask"), (REARRANGEMENTS, ""))
        for row in names.split()
        if (found := _record(row.replace("|", " "), padded=padded)).functions
    ),
    *(_record(name, padded="mask", **as_property(name)) for name in ("T", "mT")),
    *(_record(name, **as_property(name)) for name in ("H", "mH")),
    *(
        # torch.functional expects a sequence for the latter
        _record(name, at_least, extra=(getattr(torch._C._VariableFunctions, name),))
        for name in ("atleast_1d", "atleast_2d", "atleast_3d")
    ),
    _record("repeat_interleave", repeat_interleave, padded="mask"),
    _record("view", view, padded="mask"),
    _record("view_as_real", complex_view),
    _record("view_as_complex", complex_view),
    _record("unfold", functions=(Tensor.unfold,)),
    *(_record(f"fft.{name}", functions=(getattr(torch.fft, name),)) for name in ("fftshift", "ifftshift")),
    _record("slice", functions=(torch.ops.aten.slice, torch.ops.aten.slice.Tensor), padded="mask"),
    _record("linalg.diagonal", functions=(torch.linalg.diagonal,)),
    record(
        "as_strided",
        "views",
        as_strided,
        "moves with the values; parts of the storage that the tensor does not cover are unspecified",
        GRADIENT,
        functions=(torch.as_strided, torch.as_strided_copy, Tensor.as_strided),
    ),
    of_rule(
        as_strided_scatter,
        "views",
        "as the source where written, else as before",
        "to the source where written, else to the entries kept",
    ),
)
