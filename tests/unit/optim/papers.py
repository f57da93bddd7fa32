"""Lion as its paper prints it, for dense gradients: what torch.optim lacks to be compared with."""

from __future__ import annotations

from typing import Any

import torch


class PaperLion(torch.optim.Optimizer):
    """Chen et al., 2023, program 1: interpolate, take the sign, add the decay, step; then update the momentum."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: Any = (0.9, 0.99), **options: Any):
        defaults = {"lr": lr, "betas": betas, "weight_decay": 0.0, "maximize": False}
        super().__init__(params, defaults | options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], float(group["lr"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                parts = torch.view_as_real if p.is_complex() else torch.clone
                c = parts(beta1 * m + (1 - beta1) * g).sign()
                sign = torch.view_as_complex(c) if p.is_complex() else c
                p.sub_(lr * (sign + group["weight_decay"] * p))
                self.state[p]["exp_avg"] = beta2 * m + (1 - beta2) * g
