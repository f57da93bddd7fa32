"""Writing in place: values and mask are modified in their own memory, so that all views change.

Values are ordinary memory: a view of a MaskedTensor has a view of its values. Masks are shared more widely, as the
result of ``x * 2`` has the mask of ``x`` and must not see later writes to ``x``. So one rule: a mask is copied before a
write, unless only one MaskedTensor and its views hold it (its :class:`~maskgrad.patterns.boolean.MaskStorage`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.smallest import smallest
from maskgrad.masked_tensor.instead import name_of
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.mode import TRACED, can_read, mode
from maskgrad.patterns import BooleanPattern
from maskgrad.patterns.boolean import MaskStorage, is_expanded, same_memory, sharers
from maskgrad.semantics.entries import Entries, chosen
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.stored.entries import StoredEntries, shape_of

__all__ = [
    "VIEWS_OF_NUMBERS", "keep_masks", "makes_views", "pattern_of_result", "recorded",
    "requires_grad", "writable_mask", "write_entries", "write_mask", "write_result",
]  # fmt: skip

#: The elementwise operations whose results are new tensors that share memory with an operand.
VIEWS_OF_NUMBERS = frozenset({"real", "imag", "conj"})
#: Of the family "views", those that copy.
COPIES = ("flip", "fliplr", "flipud", "rot90", "roll", "repeat", "tile", "repeat_interleave")


def makes_views(operation: Operation, args: tuple[Any, ...]) -> bool:
    """Return whether results are views, by the record of the operation; a graph cannot compare memory."""
    if operation.name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return not any(isinstance(part, (Tensor, list, Entries)) for part in index)
    if operation.family != "views":
        return operation.name in VIEWS_OF_NUMBERS
    return not (operation.name in COPIES or operation.name.endswith("_copy") or "shuffle" in operation.name)


def pattern_of_result(
    operation: Operation, args: Any, sources: Iterable[MaskedTensor], values: Tensor, mask: Tensor
) -> BooleanPattern:
    """Return the pattern of a result: of a view, that of the operand whose memory it has; else the mask is shared."""
    how = mode()
    views = operation.family != "elementwise" or operation.name in VIEWS_OF_NUMBERS
    # in a graph and in a transform, memory cannot be compared
    unknown = how != "eager" and makes_views(operation, args)
    if how != "eager" and operation.name == "clone":  # its mask is a copy, which views can write
        mask = mask.clone()
        return BooleanPattern(mask, MaskStorage(mask, copy_before_write=False))
    for source in sources:
        pattern = source._pattern
        if type(pattern) is not BooleanPattern:
            continue
        if values is source._values or (views and how not in TRACED and same_memory(values, source._values)):
            return pattern.alias(mask) if how in TRACED else pattern.of_view(mask)
        if unknown:
            return pattern.alias(mask)
        if mask is pattern._mask or (
            how not in TRACED and mask._is_view() and same_memory(mask, pattern._mask)
        ):
            pattern.shared_mask()
    return BooleanPattern(mask)


def write_entries(target: MaskedTensor, values: Tensor, mask: Tensor) -> None:
    """Write values and mask; values under the mask are not changed."""
    known = _pattern(target).current
    same = mask is known or (can_read(mask) and torch.equal(mask, known))
    if not same:
        place = writable_mask(target, mask)
    old = target._values
    old.copy_(chosen(mask, values.to(old.dtype), old))
    if not same:
        place.copy_(_narrowed(mask, place))


def write_mask(target: MaskedTensor, index: Any, wanted: Tensor | bool) -> None:
    """Write the mask of some entries."""
    known = _pattern(target).current
    here = known[index]
    if can_read(here) and bool((here == wanted).all()):
        return
    if not is_expanded(known):
        writable_mask(target)[index] = wanted
        return
    after = known.clone(memory_format=torch.contiguous_format)
    after[index] = wanted
    place = writable_mask(target, after)
    place.copy_(_narrowed(after, place))


def _pattern(target: MaskedTensor) -> BooleanPattern:
    """Sparse layouts are rebound, and never passed here."""
    pattern = target._pattern
    assert isinstance(pattern, BooleanPattern)
    return pattern


def _narrowed(mask: Tensor, place: Tensor) -> Tensor:
    """Return a mask without the dimensions along which ``place`` repeats."""
    return mask[tuple([slice(size) for size in place.shape])]


def writable_mask(target: MaskedTensor, wanted: Tensor | None = None) -> Tensor:
    """Return the mask in its smallest shape, in memory read only by this tensor and its views.

    Args:
        target: with a Boolean mask.
        wanted: the new mask. If several entries share one Boolean, it must be equal for all of them.

    Raises:
        RuntimeError: it is not, or the base of this view would not see the write.
    """
    pattern = _pattern(target)
    storage, mask = pattern.storage, pattern.current
    if storage.copy_before_write and not storage.separate and not storage.viewed:
        mask = mask.clone(memory_format=torch.contiguous_format)
        target._pattern = BooleanPattern(mask, MaskStorage(mask, copy_before_write=False))
        return mask
    if (sharers(storage.whole) > 1 or is_expanded(mask)) and not _is_whole(target, storage, wanted):
        raise RuntimeError(
            "this write changes the mask for some of several entries that share one Boolean (the mask was expanded); "
            "write to x.clone() instead"
        )
    if storage.separate or (storage.copy_before_write and mode() != "eager"):
        raise RuntimeError(
            "this write changes the mask, and the base of this view would not see it. "
            "Write to x.clone(), or to the tensor itself: x[index] = value"
        )
    if storage.copy_before_write:
        storage.move(mask)
    return smallest(pattern.current)


def _is_whole(target: MaskedTensor, storage: MaskStorage, wanted: Tensor | None) -> bool:
    """Return whether a write is known to set all entries that share a Boolean equally."""
    mask = _pattern(target).current
    if wanted is None or not can_read(wanted) or is_expanded(target._values):
        return False
    one = _narrowed(wanted, smallest(mask))
    return sharers(storage.whole) == sharers(mask) and torch.equal(one.expand_as(wanted), wanted)


def keep_masks(sources: Iterable[MaskedTensor]) -> None:
    """Let later writes copy the masks of the operands, which the graph may have saved. Views save none."""
    for source in sources:
        pattern = source._pattern
        if type(pattern) is BooleanPattern and pattern._storage is not None:  # else its first write copies it
            pattern.keep()


def recorded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the operands of an operation in place; the graph saves a copy of the target."""
    target = args[0]
    if type(target) is not MaskedTensor or not torch.is_grad_enabled():
        return args
    if not any(requires_grad(operand) for operand in (*args, *kwargs.values())):
        return args
    return (MaskedTensor(target._values.clone(), target._pattern), *args[1:])


def requires_grad(operand: Any) -> bool:
    """Return whether a gradient of a masked or plain operand is recorded."""
    if type(operand) is MaskedTensor:
        return operand._values.requires_grad
    return isinstance(operand, Tensor) and operand.requires_grad


def write_result(target: Any, result: Any, function: Any, reshapes: bool) -> MaskedTensor | Tensor:
    """Rebind the target of an in-place operation (or ``out=``) to the result, under torch's conditions."""
    if not isinstance(target, MaskedTensor):
        if isinstance(result, Tensor):  # a number
            if _category(result.dtype) <= _category(target.dtype):  # else torch raises the error
                result = result.to(target.dtype)
            return torch.where(torch.ones_like(result, dtype=torch.bool), result, result, out=target)
        words = (
            f"{name_of(function)} cannot write a masked result into a plain tensor: it cannot store which entries "
            "are specified. Use the out-of-place form, or fill the masked operand first with .filled(value)"
        )
        # after a TypeError Python would try target = target + masked, invisible to aliases of the target
        raise RuntimeError(words) if isinstance(target, Tensor) else TypeError(words)
    if isinstance(result, Tensor):  # only the target is masked: results of plain operands are fully specified
        result = Entries(result, torch.ones((), dtype=torch.bool, device=result.device).expand(result.shape))
    if not isinstance(result, (Entries, StoredEntries)):
        raise TypeError(
            f"{name_of(function)} has several results; out= takes one MaskedTensor. Call it without out="
        )
    values = target._values
    if values.requires_grad and values.is_leaf and torch.is_grad_enabled():
        raise RuntimeError(
            "a leaf MaskedTensor that requires grad is being used in an in-place operation; "
            "use the out-of-place form, or torch.no_grad()"
        )
    shape = shape_of(result)
    before = values.shape if isinstance(target._pattern, BooleanPattern) else target.shape
    if shape != before and not reshapes:
        raise RuntimeError(
            f"{name_of(function)} in place: the result has shape {tuple(shape)}, the target "
            f"{tuple(before)}; broadcasting cannot enlarge the target"
        )
    # only float_power does not round its double result to the target
    too_wide = getattr(function, "__name__", "") == "float_power" and result.values.dtype != values.dtype
    if too_wide or _category(result.values.dtype) > _category(values.dtype):
        raise RuntimeError(
            f"{name_of(function)} in place: result type {result.values.dtype} cannot be cast to {values.dtype}"
        )
    leaf = values.requires_grad and values.is_leaf
    if isinstance(result, Entries) and isinstance(target._pattern, BooleanPattern) and not reshapes:
        write_entries(target, *result)
    elif isinstance(result, StoredEntries) and result.pattern is target._pattern:
        values.copy_(result.values)
    elif leaf:
        raise RuntimeError(
            f"{name_of(function)} in place would replace a leaf that requires grad, and its .grad; "
            "use x = function(x).detach().requires_grad_()"
        )
    elif isinstance(result, StoredEntries):
        target._rebind(result.values.to(values.dtype), result.pattern)
    else:
        old, mask = target._pattern, result.mask
        new = old.alias(mask) if isinstance(old, BooleanPattern) else BooleanPattern(mask)
        target._rebind(result.values, new)
    return target


def _category(dtype: torch.dtype) -> int:
    # torch.can_cast, which torch.compile cannot trace
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1
