"""Sums of products: torch's own function with zeros in place of what is unspecified; indicators count the products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import Result

__all__ = ["contraction", "convolution", "products"]

#: Operands that are added to the products, by their place.
ADDED = {"addmm": 0, "addmv": 0, "addr": 0, "baddbmm": 0, "addbmm": 0, "linear": 2, "bilinear": 3}


def products(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor], added: int | None = None
) -> tuple[Tensor, Tensor]:
    """The values, and how many products of specified factors are in each; the operand ``added`` is no factor.

    The numbers of a sample are finite, so that zero times any of them is zero.
    """
    safe, ones = [], []
    for i, (leaf, mask) in enumerate(zip(leaves, masks, strict=True)):
        safe.append(leaf if i == added else torch.where(mask, leaf, leaf.new_zeros(())))
        exact = torch.complex128 if leaf.is_complex() else torch.float64
        ones.append(torch.zeros(leaf.shape, dtype=exact) if i == added else mask.to(exact))
    args, kwargs = call.with_tensors(safe)
    values = entry.function(*args, **kwargs)
    args, kwargs = call.with_tensors(ones)
    count = entry.function(*args, **{k: v for k, v in kwargs.items() if k not in ("alpha", "beta")})
    return values, (count.real if count.is_complex() else count).round()


def contraction(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Specified where there is a product, and what is added to it (a bias, the first argument of addmm) is."""
    added = ADDED.get(entry.operation.name)
    values, count = products(entry, call, leaves, masks, added)
    mask = count > 0
    _, kwargs = call.with_tensors(leaves)
    if added is not None and added < len(masks) and kwargs.get("beta", 1):  # beta=0: "input will be ignored"
        mask = mask & masks[added]
    return values, [mask]


def convolution(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Specified where there is a product, or where no window of data makes any: positions between patches of fold."""
    values, count = products(entry, call, leaves, masks, added=2)
    _, every = products(entry, call, leaves, [torch.ones_like(mask) for mask in masks], added=2)
    mask = (count > 0) | (every == 0)
    for bias in masks[2:]:
        mask = mask & bias.reshape(-1, *[1] * (leaves[1].ndim - 2))
    return values, [mask]
