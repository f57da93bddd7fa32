r"""One optimizer step on the rows of a table that have a gradient, merged, in one pass.

With :math:`g` the merged gradient of a touched row times ``factor``, plus ``weight_decay`` times the row (Adam may
decay the row itself instead):

.. math:: \text{SGD:}\quad b \leftarrow \mu b + (1 - \tau) g, \qquad
          p \mathrel{-}= \text{lr} \cdot (g + \mu b \text{ if Nesterov}, \text{else } b \text{; without momentum } g)
.. math:: \text{Adagrad:}\quad s \mathrel{+}= g^2 \ \text{(row-wise: its mean over the row)}, \qquad
          p \mathrel{-}= \text{lr} \cdot g / (\sqrt{s} + \text{eps})
.. math:: \text{Adam:}\quad m \mathrel{+}= (1 - \beta_1) (g - m), \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2,
          \qquad p \mathrel{-}= \frac{\text{lr}}{1 - \beta_1^t} \cdot m / (\sqrt{v / (1 - \beta_2^t)} + \text{eps})
.. math:: \text{RMSprop:}\quad v \leftarrow \alpha v + (1 - \alpha) g^2, \qquad
          p \mathrel{-}= \text{lr} \cdot g / (\sqrt{v} + \text{eps}) \ \text{(or that enters a buffer)}

These are the formulas of ``torch.optim``; in PyTorch they are in ``formulas.py``. Rows without a gradient keep
parameter and state bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_rows
from maskgrad.kernels.kernel import backend_of
from maskgrad.kernels.selection import loops_run
from maskgrad.mode import is_plain

#: The loops, and the names of their scalars.
RULES = {
    "sgd": ("factor", "weight_decay", "lr", "momentum", "undamped"),
    "adagrad": ("factor", "weight_decay", "lr", "eps"),
    "rowwise_adagrad": ("factor", "weight_decay", "lr", "eps"),
    "adam": ("factor", "coupled", "rate", "new1", "beta2", "new2", "root2", "eps", "shrink"),
    "rmsprop": ("factor", "weight_decay", "lr", "alpha", "new", "eps", "momentum"),
}


def scalars(rule: str, numbers: Mapping[str, Any]) -> tuple[float, ...]:
    """The scalars of a loop, from the hyperparameters."""
    of: dict[str, Any] = {"factor": 1.0, "weight_decay": 0.0, "momentum": 0.0, **numbers}
    of["undamped"], of["new"] = 1 - of.get("dampening", 0.0), 1 - of.get("alpha", 0.0)
    if rule == "adam":
        decay, beta1, beta2 = of["weight_decay"], of["beta1"], of["beta2"]
        of["coupled"], of["shrink"] = (0.0, 1 - of["lr"] * decay) if of.get("decoupled") else (decay, 1.0)
        of |= {"rate": of["lr"] / (1 - beta1 ** of["step"]), "root2": math.sqrt(1 - beta2 ** of["step"])}
        of |= {"new1": 1 - beta1, "new2": 1 - beta2}
    return tuple([float(of[name]) for name in RULES[rule]])


@torch.no_grad()
def update_rows_(
    rule: str, tables: Sequence[Tensor | None], indices: Tensor, values: Tensor, **numbers: Any
) -> bool:
    """One step in place; False, and nothing is written, where the loop does not support the arguments.

    Args:
        rule: one of ``RULES``.
        tables: the parameter, and each state of the rule, or None.
        indices: the rows that have a gradient; one outside the table is an IndexError, and nothing is written.
        values: their gradients.
        numbers: the hyperparameters.
    """
    check_rows(indices, values)
    given = [t for t in tables if t is not None]
    if not loops_run() or not all(map(is_plain, (*given, indices, values))):
        return False
    update = backend_of("maskgrad.kernels.updates.cpu", "update_table")
    if not update(rule, tables, indices, values, **numbers):
        return False
    torch.autograd.graph.increment_version(given)
    return True
