"""Masks as arguments: what may be one, and the error for everything else."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from maskgrad.kernels.smallest import smallest
from maskgrad.mode import PLAIN, mode
from maskgrad.other_data import has_own_mask, mask_conversion_of

__all__ = ["boolean_mask", "check_mask"]

#: without a kernel for their extremes
_UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8} | _UNSIGNED


def check_mask(
    mask: object, shape: torch.Size, device: torch.device, name: str = "mask", true: str = "specified"
) -> Tensor:
    """Return ``mask`` as a Boolean tensor broadcast to ``shape``, or raise an error.

    Every mask argument is checked here. Masks with fewer dimensions are refused, because ``(B,)`` for ``(B, B)``
    would broadcast along the wrong dimension; except if they end in a dimension of size 1 or have none.

    ``name`` is the argument in messages, ``true`` what True means in it.

    Raises:
        TypeError: ``mask`` is not a tensor of Booleans or integers.
        ValueError: it contains other integers than 0 and 1, has fewer dimensions, does not broadcast to ``shape``, or
            is on another device.
    """
    mask = boolean_mask(mask, name, true)
    mask = mask.contiguous() if mode() == "export" else mask  # that of an example may repeat, and others not
    if mask.device != device:
        raise ValueError(
            f"{name} must be on the device of the data, {device}, found {mask.device}; "
            f"use {name}.to({str(device)!r})"
        )
    if mask.shape == shape:
        return mask
    if mask.ndim < len(shape) and mask.ndim and mask.shape[-1] != 1:
        raise _does_not_fit(name, mask.shape, shape)
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise _does_not_fit(name, mask.shape, shape) from None


def boolean_mask(mask: object, name: str = "mask", true: str = "specified") -> Tensor:
    """Return a mask as a Boolean tensor: itself, or of integers 0 and 1, as tokenizers write it, a new one.

    Entries are read in eager mode, also on a GPU, which then waits; elsewhere every integer but 0 is True.

    Raises:
        TypeError, ValueError: as :func:`check_mask`.
    """
    if (
        type(mask) is Tensor
        and mask.dtype is torch.bool
        and mask.layout is torch.strided
        and not mask.is_nested
    ):
        return mask
    if not isinstance(mask, Tensor) or has_own_mask(mask):
        found = f"{type(mask).__name__}; use {mask_conversion_of(mask, name)}"
        raise TypeError(f"{_expected(name, true)}, found {found}")
    if mask.layout != torch.strided:
        raise TypeError(f"{name} must be a strided tensor, found layout {mask.layout}; use {name}.to_dense()")
    if mask.dtype is torch.bool:
        return mask
    if mask.dtype not in _INTEGERS:
        ways = f"use {name} != 0, or {name} == 0 for an additive mask (0 and -inf)"
        raise TypeError(f"{_expected(name, true)}, found {mask.dtype}; {ways}")
    few = mask if mode() == "export" else smallest(mask)
    chosen = few != 0
    if _may_be_read(few) and not _is_zero_or_one(few):
        other = int(few[chosen.to(few.dtype) != few][0])
        ways = f"use {name} != 0"
        if mask.ndim == 1 and true == "specified":
            ways += f", or mg.from_lengths(data, {name}) for lengths"
        raise ValueError(f"{_expected(name, true)}, found the entry {other}; {ways}")
    return chosen.expand(mask.shape)


def _expected(name: str, true: str) -> str:
    return f"{name} must be a Boolean torch.Tensor, or one of integers 0 and 1 (True or 1 = {true})"


def _is_zero_or_one(integers: Tensor) -> bool:
    if not integers.numel():
        return True
    least, most = torch.aminmax(integers.long() if integers.dtype in _UNSIGNED else integers)
    return int(least) >= 0 and int(most) <= 1


def _may_be_read(mask: Tensor) -> bool:
    """Return whether the entries of an argument may be read: it is a real tensor, and nothing is being traced."""
    if mode() != "eager" or type(mask) not in PLAIN or mask.device.type not in ("cpu", "cuda"):
        return False
    return not (mask.is_cuda and torch.cuda.is_current_stream_capturing())


def _does_not_fit(name: str, sizes: torch.Size, shape: torch.Size) -> ValueError:
    ways = [name + index for index in _indices(sizes, shape)]
    return ValueError(
        f"{name} must have as many dimensions as the data, each of its size or 1 where the mask repeats; found a mask "
        f"of shape {tuple(sizes)} for data of shape {tuple(shape)}"
        + (f"; use {' or '.join(ways)}" if ways else "")
    )


def _indices(sizes: torch.Size, shape: torch.Size) -> list[str]:
    """Indices that make a mask fit ``shape``, with None for the dimensions along which it repeats."""
    found: dict[tuple[int, ...], str] = {}
    for kept in itertools.combinations(reversed(range(len(shape))), len(sizes)):
        here = dict(zip(reversed(kept), sizes, strict=True))
        wide = tuple(here.get(dim, 1) for dim in range(len(shape)))
        if all(size in (1, wanted) for size, wanted in zip(wide, shape, strict=True)):
            index = [":" if dim in here else "None" for dim in range(len(shape))]
            while index[-1] == ":":
                index.pop()
            found.setdefault(wide, f"[{', '.join(index)}]")
    return list(found.values())
