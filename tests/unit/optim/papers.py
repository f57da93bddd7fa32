"""Lion as its paper prints it, for dense gradients: what torch.optim lacks to be compared with."""

from __future__ import annotations

from typing import Any

import torch


class PaperLion(torch.optim.Optimizer):
    """Chen et al., 2023, program 1: interpolate, take the sign, add the decay, step; then update the momentum."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: Any = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ):
        super().__init__(
            params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": False} | options
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], float(group["lr"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                c = beta1 * torch.view_as_real(m) if p.is_complex() else beta1 * m
                c = c + (1 - beta1) * (torch.view_as_real(g) if p.is_complex() else g)
                sign = torch.view_as_complex(c.sign()) if p.is_complex() else c.sign()
                p.sub_(lr * (sign + group["weight_decay"] * p))
                self.state[p]["exp_avg"] = beta2 * m + (1 - beta2) * g
