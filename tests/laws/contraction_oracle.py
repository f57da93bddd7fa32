"""Contractions, written out: every product, those with only specified factors chosen, summed in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry

__all__ = ["contraction", "sum_of_products"]


def sum_of_products(
    left: Tensor, left_mask: Tensor, right: Tensor, right_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """``left @ right`` over the products whose two factors are specified, and where there is one."""
    rows, columns = left.ndim > 1, right.ndim > 1
    # (…, n, k, 1) and (…, 1, k, m): all products, (…, n, k, m)
    a, a_mask = (x.unsqueeze(-1) if rows else x[None, :, None] for x in (left, left_mask))
    b, b_mask = (x.unsqueeze(-3) if columns else x[None, :, None] for x in (right, right_mask))
    both = a_mask & b_mask
    # chosen before they are multiplied: an infinite factor must not meet the gradient of an absent partner
    wide = torch.promote_types(left.dtype, torch.float64)
    products = torch.where(both, a.to(wide), 0) * torch.where(both, b.to(wide), 0)
    values, mask = products.sum(-2), both.any(-2)
    if not columns:
        values, mask = values.squeeze(-1), mask.squeeze(-1)
    if not rows:
        dim = -2 if columns else -1
        values, mask = values.squeeze(dim), mask.squeeze(dim)
    return values.to(left.dtype), mask


def contraction(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The sum of products, plus the operand that is only added (a bias, the first argument of addmm)."""
    name = entry.operation.name
    if name in ("matmul", "mm", "bmm", "mv", "dot"):
        (left, right), (left_mask, right_mask) = leaves, masks
        if entry.name == "__rmatmul__":
            left, right, left_mask, right_mask = right, left, right_mask, left_mask
        values, mask = sum_of_products(left, left_mask, right, right_mask)
        return values, [mask]
    if name == "linear":
        (x, weight, *bias), (x_mask, weight_mask, *bias_mask) = leaves, masks
        weight, weight_mask = (w.mT if w.ndim > 1 else w for w in (weight, weight_mask))
        values, mask = sum_of_products(x, x_mask, weight, weight_mask)
        for b, b_mask in zip(bias, bias_mask, strict=True):
            values, mask = values + b, mask & b_mask
        return values, [mask]
    return multilinear(entry, call, leaves, masks)


#: Operands that are added to the products, by their place.
ADDED = {"addmm": 0, "addmv": 0, "addr": 0, "baddbmm": 0, "addbmm": 0, "bilinear": 3}


def multilinear(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """torch's own function, linear in each factor: zero takes no part, and indicators count the products.

    The numbers of a sample are finite, so that zero times any of them is zero.
    """
    added = ADDED.get(entry.operation.name)
    safe = [
        leaf if i == added else torch.where(mask, leaf, leaf.new_zeros(()))
        for i, (leaf, mask) in enumerate(zip(leaves, masks, strict=True))
    ]
    args, kwargs = call.with_tensors(safe)
    values = entry.function(*args, **kwargs)
    ones = [
        torch.zeros_like(leaf) if i == added else mask.to(leaf.dtype)
        for i, (leaf, mask) in enumerate(zip(leaves, masks, strict=True))
    ]
    args, kwargs = call.with_tensors([one.detach() for one in ones])
    count = entry.function(*args, **{k: v for k, v in kwargs.items() if k not in ("alpha", "beta")})
    mask = (count.real if count.is_complex() else count) > 0
    if added is not None and added < len(masks) and kwargs.get("beta", 1):  # beta=0: "input will be ignored"
        mask = mask & masks[added]
    return values, [mask]
