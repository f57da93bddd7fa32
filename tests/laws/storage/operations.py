"""Every operation that is tried: elementwise ones, reductions, losses, and those of the other file."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
import torch.nn.functional as F

from tests.laws.storage.expectations import (
    Operation,
    anywhere,
    both,
    has_sizes,
    keeps,
    meets,
    of_rank,
    same,
    strided,
    typical,
)
from tests.laws.storage.layouts import Storage
from tests.laws.storage.movements import MOVEMENTS, PRODUCTS

__all__ = ["OPERATIONS"]

UNARY = (
    "exp", "sin", "tanh", "abs", "neg", "square", "sigmoid", "ceil", "sign", "floor", "erf", "expm1", "atan",
)  # fmt: skip
POSITIVE = ("log", "sqrt", "reciprocal", "rsqrt", "log1p", "lgamma", "digamma")
FUNCTIONS = (
    "relu", "gelu", "silu", "softplus", "elu", "leaky_relu", "hardtanh", "logsigmoid", "mish", "selu",
    "softsign",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "maximum", "minimum", "atan2", "hypot", "logaddexp")


def _elementwise() -> list[Operation]:
    alone = [
        *((n, getattr(torch, n), -2.0) for n in UNARY),
        *((n, getattr(torch, n), 0.5) for n in POSITIVE),
        *((f"F.{n}", getattr(F, n), -2.0) for n in FUNCTIONS),
    ]
    cases = [keeps(n, lambda w, f=f: f(w.x), typical, low=low) for n, f, low in alone]
    for n in BINARY:
        f = getattr(torch, n)
        cases += [
            keeps(f"{n} same", lambda w, f=f: f(w.x, w.same)),
            meets(f"{n} other", lambda w, f=f: f(w.x, w.other)),
            keeps(f"{n} dense", lambda w, f=f: f(w.x, w.dense)),
        ]
    return [
        *cases,
        keeps("div by dense", lambda w: w.x / (w.dense.abs() + 1)),
        keeps("dense - x", lambda w: w.dense - w.x),
        keeps("row - x", lambda w: w.row - w.x),
        keeps("x * row", lambda w: w.x * w.row),
        keeps("3 - x", lambda w: 3 - w.x),
        keeps("x ** 3", lambda w: w.x**3),
        keeps("x > 0", lambda w: w.x > 0),
        meets("x == other", lambda w: w.x == w.other),
        keeps("clamp", lambda w: w.x.clamp(-1, 1)),
        keeps("add alpha", lambda w: torch.add(w.x, w.same, alpha=2)),
        keeps("lerp", lambda w: torch.lerp(w.x, w.same, 0.3)),
        meets("addcmul", lambda w: torch.addcmul(w.x, w.same, w.other, value=2)),
        keeps("isnan", lambda w: torch.isnan(w.x)),
        Operation("frexp", lambda w: tuple(torch.frexp(w.x)), lambda w: (w.x, w.x), same, order=0),
        # torch's second derivative at 0 is not that of its first
        keeps("prelu", lambda w: F.prelu(w.x, w.row[:1].abs()), lambda s: s.shape[-1] > 0, order=1),
        keeps("clone", lambda w: w.x.clone()),
        keeps("to float32", lambda w: w.x.to(torch.float32), order=1),
        Operation("minus mean", lambda w: w.x - w.x.mean(-1, keepdim=True), lambda w: w.x,
                  lambda s, r: torch.sparse_coo if s.dense else s.layout),
    ]  # fmt: skip


def _vector_norm(order: float) -> Callable[..., Any]:
    return lambda x, dim, **options: torch.linalg.vector_norm(x, order, dim, **options)


def _reductions() -> list[Operation]:
    cases = []
    formulas: list[tuple[str, Callable[..., Any], int, float]] = [
        *((n, getattr(torch, n), 2, -2.0) for n in ("sum", "mean", "logsumexp", "nansum", "nanmean")),
        *((n, getattr(torch, n), 1, -2.0) for n in ("amax", "amin", "any", "all", "count_nonzero")),
        ("norm", _vector_norm(2), 2, 0.5), ("norm 0 at zeros", _vector_norm(0), 0, -2.0),
        ("norm 1", _vector_norm(1), 1, -2.0), ("norm inf", _vector_norm(inf), 1, -2.0),
        ("norm -inf", _vector_norm(-inf), 1, -2.0), ("norm 3", _vector_norm(3), 2, 0.5),
        ("norm -1", _vector_norm(-1), 2, 0.5),
        ("var", lambda x, dim, **k: torch.var(x, dim, correction=0, **k), 2, -2.0),
        ("std", lambda x, dim, **k: torch.std(x, dim, correction=0, **k), 1, 0.5),
    ]  # fmt: skip
    for name, f, order, low in formulas:
        fits = has_sizes if name in ("amax", "amin", "norm inf", "norm -inf", "norm -1") else anywhere
        more: dict[str, Any] = {"low": low, "order": order, "fits": fits}
        cases += [
            Operation(f"{name} last", lambda w, f=f: f(w.x, dim=-1), lambda w: w.x.any(-1), _remaining(1), **more),
            Operation(f"{name} first", lambda w, f=f: f(w.x, dim=0), lambda w: w.x.any(0), _remaining(0), **more),
            Operation(f"{name} all", lambda w, f=f: f(w.x, dim=tuple(range(w.x.ndim))), lambda w: w.x.any(), strided,
                      **more),
        ]  # fmt: skip
        if name != "count_nonzero":
            cases.append(Operation(f"{name} keepdim", lambda w, f=f: f(w.x, dim=0, keepdim=True),
                                   lambda w: w.x.any(0, keepdim=True), _remaining(0), **more))  # fmt: skip
    for name, order in (("prod", 2), ("argmax", 0), ("argmin", 0)):
        f, more = getattr(torch, name), {"order": order, "fits": anywhere if name == "prod" else has_sizes}
        cases += [
            Operation(f"{name} last", lambda w, f=f: f(w.x, dim=-1), lambda w: w.x.any(-1), _remaining(1), **more),
            Operation(f"{name} first", lambda w, f=f: f(w.x, 0, True), lambda w: w.x.any(0, keepdim=True),
                      _remaining(0), **more),
            Operation(f"{name} all", lambda w, f=f: f(w.x), lambda w: w.x.any(), strided,
                      nothing=1 if name == "prod" else None, **more),
        ]  # fmt: skip
    cases += [
        Operation(f"{n} dim", lambda w, n=n: tuple(getattr(torch, n)(w.x, dim=-1)),
                  lambda w: (w.x.any(-1), w.x.any(-1)), _remaining(1), has_sizes, order=1)
        for n in ("max", "min", "aminmax")
    ]  # fmt: skip
    return [
        *cases,
        Operation("max all", lambda w: w.x.max(), lambda w: w.x.any(), strided, has_sizes, order=1),
        Operation("var_mean", lambda w: tuple(torch.var_mean(w.x, -1)), lambda w: (w.x.sum(-1) > 1, w.x.any(-1)),
                  _remaining(1), order=1),
        Operation("std unbiased", lambda w: w.x.std(0, False), lambda w: w.x.any(0), _remaining(0), low=0.5, order=1),
        Operation("sum dtype", lambda w: w.x.sum(-1, dtype=torch.float32), lambda w: w.x.any(-1), _remaining(1),
                  order=1),
        Operation("sum of two dims", lambda w: w.x.sum((0, 1)), lambda w: w.x.any(1).any(0),
                  lambda s, r: torch.sparse_coo if len(s.mask.shape) > 2 else torch.strided, of_rank(2, 3)),
        Operation("linalg.norm", lambda w: torch.linalg.norm(w.x), lambda w: w.x.any(), strided, low=0.5, nothing=0),
        Operation("linalg.norm 3", lambda w: torch.linalg.norm(w.x, 3, dim=-1), lambda w: w.x.any(-1), _remaining(1),
                  low=0.5),
        Operation("p-norm", lambda w: torch.norm(w.x, 2, -1), lambda w: w.x.any(-1), _remaining(1), low=0.5),
        *(
            keeps(f"{n} {dim}", lambda w, n=n, dim=dim: getattr(torch, n)(w.x, dim))
            for n in ("softmax", "log_softmax") for dim in (0, -1)
        ),
        keeps("softmin", lambda w: F.softmin(w.x, -1)),
        keeps("normalize", lambda w: F.normalize(w.x, dim=-1), low=0.5),
        keeps("normalize first", lambda w: F.normalize(w.x, dim=0), low=0.5),
    ]  # fmt: skip


def _numbers() -> list[Operation]:
    """Reductions of everything, each with what PyTorch gives on an empty tensor."""
    formulas: list[tuple[str, Callable[..., Any], float, int, float]] = [
        *((n, getattr(torch, n), 0, 2, -2.0) for n in ("sum", "nansum")),
        *((n, getattr(torch, n), nan, 2, -2.0) for n in ("mean", "nanmean")),
        ("any", torch.any, 0, 0, -2.0), ("all", torch.all, 1, 0, -2.0),
        ("count_nonzero", torch.count_nonzero, 0, 0, -2.0),
        ("sum float32", lambda x: x.sum(dtype=torch.float32), 0, 1, -2.0),
        ("sum ()", lambda x: torch.sum(x, ()), 0, 2, -2.0),
        ("logsumexp ()", lambda x: torch.logsumexp(x, ()), -inf, 2, -2.0),
        ("var 0", lambda x: torch.var(x, correction=0), nan, 2, -2.0),
        ("std 0", lambda x: torch.std(x, unbiased=False), nan, 1, 0.5),
        ("vector_norm", torch.linalg.vector_norm, 0, 2, 0.5), ("norm", torch.norm, 0, 2, 0.5),
        ("vector_norm 1", lambda x: torch.linalg.vector_norm(x, 1), 0, 1, 0.5),
        ("vector_norm 3", lambda x: torch.linalg.vector_norm(x, ord=3), 0, 2, 0.5),
        ("norm 3", lambda x: torch.norm(x, p=3), 0, 2, 0.5),
    ]  # fmt: skip
    numbers = [
        Operation(f"{name} of everything", lambda w, f=f: f(w.x), lambda w: w.x.any(), strided, low=low, order=order,
                  nothing=nothing)
        for name, f, nothing, order, low in formulas
    ]  # fmt: skip
    return [
        *numbers,
        Operation("std_mean of everything", lambda w: torch.std_mean(w.x, correction=0),
                  lambda w: (w.x.any(), w.x.any()), strided, low=0.5, order=1, nothing=nan),
    ]  # fmt: skip


def _remaining(last: int) -> Callable[[Storage, int], torch.layout]:
    """COO if a sparse dimension remains after one is reduced, else dense."""

    def layout(storage: Storage, rank: int) -> torch.layout:
        sparse = storage.mask.ndim
        reduced_is_sparse = not last or not storage.dense
        return torch.sparse_coo if sparse - reduced_is_sparse else torch.strided

    return layout


def _losses() -> list[Operation]:
    cases = []
    binary = F.binary_cross_entropy
    losses: list[tuple[str, Callable[..., Any], float]] = [
        ("mse_loss", F.mse_loss, -2.0), ("l1_loss", F.l1_loss, -2.0), ("smooth_l1_loss", F.smooth_l1_loss, -2.0),
        ("huber_loss", F.huber_loss, -2.0), ("poisson_nll_loss", F.poisson_nll_loss, 0.5),
        ("kl_div", lambda x, y, reduction: F.kl_div(-x, y, reduction=reduction.replace("mean", "batchmean")), 0.5),
        ("bce", lambda x, y, **how: binary(x / 9, y / 9, **how), 0.5),
        ("bce weights", lambda x, y, **how: binary(x / 9, y / 9, y.detach(), **how), 0.5),
        ("bce logits", F.binary_cross_entropy_with_logits, 0.5),
        ("soft_margin", lambda x, y, **how: F.soft_margin_loss(x, y.detach(), **how), -2.0),
        ("gaussian", lambda x, y, **how: F.gaussian_nll_loss(x, y, y * y + 1, **how), 0.5),
        ("hinge", lambda x, y, **how: F.hinge_embedding_loss(x, torch.sign(y), **how), 0.5),
        ("margin", lambda x, y, **how: F.margin_ranking_loss(x, y, torch.sign(y), **how), 0.5),
        ("weighted mse", lambda x, y, **how: F.mse_loss(x, y, weight=y * y + 1, **how), -2.0),
        ("weighted l1", lambda x, y, **how: F.l1_loss(x, y, weight=y * y + 1, **how), -2.0),
        ("weighted huber", lambda x, y, **how: F.huber_loss(x, y, weight=y * y + 1, **how), -2.0),
    ]  # fmt: skip
    for name, f, low in losses:
        more: dict[str, Any] = {"low": low, "order": 1, "fits": typical}
        cases += [
            Operation(f"{name} dense", lambda w, f=f: f(w.x, w.dense.abs(), reduction="mean"), lambda w: w.x.any(),
                      strided, nothing=nan, **more),
            Operation(f"{name} sum", lambda w, f=f: f(w.x, w.same, reduction="sum"), lambda w: w.x.any(), strided,
                      nothing=0, **more),
            meets(f"{name} none", lambda w, f=f: f(w.x, w.other, reduction="none"), **more),
            Operation(f"{name} other", lambda w, f=f: f(w.x, w.other, reduction="mean"), lambda w: both(w).any(),
                      strided, nothing=nan, **more),
        ]  # fmt: skip
    return cases


OPERATIONS: tuple[Operation, ...] = (
    *_elementwise(),
    *_reductions(),
    *_numbers(),
    *MOVEMENTS,
    *PRODUCTS,
    *_losses(),
)
