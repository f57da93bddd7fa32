"""Operations that find the dtype of their result, where PyTorch 2.12 finds another one while it traces, or none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES"]


def where(condition: Tensor, x: Any, y: Any) -> Any:
    """A tensor and a number of a wider kind, or two numbers: the dtype of both comes first."""
    if any(isinstance(operand, (torch.SymInt, torch.SymFloat, torch.SymBool)) for operand in (x, y)):
        return NotImplemented
    dtype = torch.result_type(x, y)
    if any(isinstance(operand, Tensor) and operand.dtype == dtype for operand in (x, y)):
        return NotImplemented
    if isinstance(y, Tensor):
        return torch.where(condition, x, y.to(dtype))
    first = x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=condition.device)
    return torch.where(condition, first, y)


def entropy(x: Tensor) -> Tensor:
    """−x log x, 0 at 0 and −∞ below; PyTorch chooses between two numbers for that."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    known = torch.where(x > 0, -x * torch.log(x), float("-inf"))
    return torch.where(torch.isnan(x), x, torch.where(x == 0, 0.0, known))


BODIES = {
    "where.Scalar where.ScalarOther where.ScalarSelf": where,
    "special_entr": entropy,
}
