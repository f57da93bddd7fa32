"""Lion and LAMB as their papers print them, for dense gradients: what torch.optim lacks to be compared with."""

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


class PaperLAMB(torch.optim.Optimizer):
    """You et al., 2020, algorithm 2."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        **options: Any,
    ):
        options = {"bias_correction": True, "norm_bounds": None, "maximize": False} | options
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay} | options
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], float(group["lr"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(p))
                state["step"] = torch.as_tensor(float(state.get("step", 0)) + 1)
                t = state["step"].item()
                g = -p.grad if group["maximize"] else p.grad
                square = g * g
                if p.is_complex():  # its parts are two numbers
                    square = torch.complex(g.real**2, g.imag**2)
                state["exp_avg"] = m = beta1 * state["exp_avg"] + (1 - beta1) * g
                state["exp_avg_sq"] = v = beta2 * state["exp_avg_sq"] + (1 - beta2) * square
                if group["bias_correction"]:
                    m, v = m / (1 - beta1**t), v / (1 - beta2**t)
                if p.is_complex():
                    eps = group["eps"]
                    r = torch.complex(m.real / (v.real.sqrt() + eps), m.imag / (v.imag.sqrt() + eps))
                else:
                    r = m / (v.sqrt() + group["eps"])
                u = r + group["weight_decay"] * p
                length, reach = p.abs().square().sum().sqrt(), u.abs().square().sum().sqrt()
                phi = length if group["norm_bounds"] is None else length.clamp(*group["norm_bounds"])
                ratio = phi / reach if length > 0 and reach > 0 else 1.0
                p.sub_(lr * ratio * u)
