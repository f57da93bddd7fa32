"""Contractions, written out: every product, those with only specified factors chosen, summed in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.operands import Call
from tests.laws.operator_database import Entry

__all__ = ["contraction", "sum_of_products"]


def sum_of_products(left: Tensor, left_mask: Tensor, right: Tensor, right_mask: Tensor) -> tuple[Tensor, Tensor]:
    """``left @ right`` over the products whose two factors are specified, and where there is one."""
    rows, columns = left.ndim > 1, right.ndim > 1
    # (…, n, k, 1) and (…, 1, k, m): all products, (…, n, k, m)
    a, a_mask = (x.unsqueeze(-1) if rows else x[None, :, None] for x in (left, left_mask))
    b, b_mask = (x.unsqueeze(-3) if columns else x[None, :, None] for x in (right, right_mask))
    both = a_mask & b_mask
    # chosen before they are multiplied: an infinite factor must not meet the gradient of an absent partner
    products = torch.where(both, a.double(), 0) * torch.where(both, b.double(), 0)
    values, mask = products.sum(-2), both.any(-2)
    if not columns:
        values, mask = values.squeeze(-1), mask.squeeze(-1)
    if not rows:
        dim = -2 if columns else -1
        values, mask = values.squeeze(dim), mask.squeeze(dim)
    return values.to(left.dtype), mask


def contraction(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The products that the entry adds up, by the meaning of its operands."""
    (left, right, *bias), (left_mask, right_mask, *bias_mask) = leaves, masks
    if entry.name == "nn.functional.linear":
        right, right_mask = (x.mT if x.ndim > 1 else x for x in (right, right_mask))
    if entry.name == "__rmatmul__":
        left, right, left_mask, right_mask = right, left, right_mask, left_mask
    values, mask = sum_of_products(left, left_mask, right, right_mask)
    for b, b_mask in zip(bias, bias_mask, strict=True):
        values, mask = values + b, mask & b_mask
    return values, [mask]
