"""A mask of the batch in the shape of an intermediate tensor, where sizes say which axes are meant."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["distinct", "leading", "shaped"]


def distinct(masks: list[Tensor]) -> list[Tensor]:
    """Masks of samples, or of batch and sequence: each once, without sizes of 1 between or after both."""
    kept: list[Tensor] = []
    for mask in masks:
        axes = [axis for axis in range(1, mask.ndim) if mask.shape[axis] == 1]
        plain = mask.squeeze(axes) if mask.ndim - len(axes) == 2 else mask
        if not any(plain.shape == other.shape and torch.equal(plain, other) for other in kept):
            kept.append(plain)
    return kept


def leading(mask: Tensor, shape: torch.Size) -> Tensor | None:
    """A mask of batch and sequence in a shape that begins with both."""
    if mask.ndim != 2 or shape[:2] != mask.shape:
        return None
    return mask.reshape(*mask.shape, *(1,) * (len(shape) - 2)).expand(shape)


def shaped(mask: Tensor, output: Tensor) -> Tensor | None:
    """The mask, if an axis has the size of the batch and others that of the sequence."""
    if not output.ndim or not output.numel():
        return None
    if mask.ndim == 1:
        return _by_rows(mask.to(output.device), output)
    if mask.ndim != 2 or output.ndim < 2:
        return None
    rows, steps = mask.shape
    mask = mask.to(output.device)
    shape = list(output.shape)
    if shape[0] == rows * steps:
        return mask.reshape(-1, *(1,) * (output.ndim - 1)).expand(output.shape)
    batch = next((axis for axis, size in enumerate(shape) if size == rows), None)
    heads = 1
    if batch is None:
        if not shape[0] or shape[0] % rows or steps not in shape[1:]:
            return None
        batch, heads = 0, shape[0] // rows
    axes = [axis for axis, size in enumerate(shape) if size == steps and axis != batch]
    if not axes:
        return None
    shadow = torch.ones(shape, dtype=torch.bool, device=output.device)
    spread = mask.repeat_interleave(heads, 0)
    for axis in axes[:2] if len(axes) > 1 and axes[1] == axes[0] + 1 else axes[:1]:
        view = [1] * len(shape)
        view[batch], view[axis] = shape[batch], steps
        shadow &= (spread if batch < axis else spread.t()).reshape(view)
    return shadow


def _by_rows(mask: Tensor, output: Tensor) -> Tensor | None:
    """The mask of whole samples, along the first axis of their number, or of a multiple in front."""
    rows, shape = len(mask), list(output.shape)
    axis = next((axis for axis, size in enumerate(shape) if size == rows), None)
    if axis is None:
        if shape[0] < rows or shape[0] % rows:
            return None
        axis, mask = 0, mask.repeat_interleave(shape[0] // rows)
    view = [1] * len(shape)
    view[axis] = shape[axis]
    return mask.reshape(view).expand(shape)
