"""Which rows of a parameter a step is going to move, from the optimizer and the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from maskgrad.gradients.attached import current_gradient
from maskgrad.gradients.gradient import read
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.sparse import prod

__all__ = ["touched_rows"]


def touched_rows(optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> Tensor | None:
    """Distinct rows (n,), numbered along the first dimension, that the coming step may move; None: all of them.

    An entry without a gradient stays where it is under the optimizers of ``mg.optim`` with ``unspecified="skip"``, and
    under those of ``torch.optim`` that are listed here. Any other optimizer may move every row.
    """
    ours = isinstance(optimizer, MaskedOptimizer)
    gradient = current_gradient(param, "a parameter") if ours else param.grad
    if gradient is None:
        return torch.empty(0, dtype=torch.int64, device=param.device)
    if param.dim() == 0 or not _leaves_the_rest_alone(optimizer, group):
        return None
    found = read(gradient, "gradient of a parameter")
    if not found.lists_rows or found.rows is None or found.leading == 0:
        return None
    within = prod(param.shape[1 : found.leading])
    rows = found.rows if within == 1 else found.rows.div(within, rounding_mode="floor")
    distinct: Tensor = rows.unique()
    return distinct


def _leaves_the_rest_alone(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    if isinstance(optimizer, MaskedOptimizer):
        return bool(group["unspecified"] == "skip")
    if type(optimizer) in (torch.optim.SparseAdam, torch.optim.Adagrad):
        return True
    plain = not group.get("momentum") and not group.get("weight_decay")
    return type(optimizer) is torch.optim.SGD and plain
