"""What of a gradient reaches the entries that ``mg.train_only`` lets be trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from maskgrad.optim.gradients import Dense, Gradient, Masked, Rows, Slots
from maskgrad.sparse import places, prod

__all__ = ["restricted"]


def restricted(gradient: Gradient, mask: Tensor | None) -> Gradient:
    """``gradient`` without the entries outside ``mask`` (of the parameter's shape); None: all of it.

    The cost follows the gradient.
    """
    if mask is None:
        return gradient
    if isinstance(gradient, Rows):
        return _restricted_rows(gradient, mask)
    if isinstance(gradient, Slots):
        return replace(gradient, mask=mask)
    values = torch.where(mask, gradient.values, 0)
    return Masked(values, mask if isinstance(gradient, Dense) else gradient.mask & mask)


def _restricted_rows(gradient: Rows, mask: Tensor) -> Gradient:
    indices, values = gradient.indices, gradient.values
    if gradient.leading == 0:
        # A COO tensor without sparse dimensions lists the whole parameter, perhaps more than once.
        half = values.dtype in (torch.float16, torch.bfloat16)
        whole = (values.float() if half else values).sum(0)
        return Masked(torch.where(mask, whole, 0), mask if len(indices) else torch.zeros_like(mask))
    sizes, row_shape = mask.shape[: gradient.leading], values.shape[1:]
    at = tuple(places(indices, sizes))
    if (
        all(step == 0 for step in mask.stride()[gradient.leading :]) and mask.numel()
    ):  # rows are trained or not
        one_per_row = mask.flatten(gradient.leading)[..., 0] if row_shape else mask
        trained = one_per_row[at]
        if bool(trained.all()):
            return gradient
        return Rows(indices[trained], values[trained], gradient.leading)
    trained = mask[at]  # (n, *row)
    if bool(trained.all()):
        return gradient
    if gradient.leading == 1:
        return Rows(indices, torch.where(trained, values, 0), 1, mask)
    entries = indices.unsqueeze(1) * prod(row_shape) + torch.arange(prod(row_shape), device=indices.device)
    inner = trained.flatten(1)
    return Rows(entries[inner], values.flatten(1)[inner], mask.dim())
