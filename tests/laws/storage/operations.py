"""Operations, and what is independently known of their results: the mask and the layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from tests.laws.storage.layouts import CSC, CSR, TURNED, Storage

__all__ = ["OPERATIONS", "Operation", "World"]


class World(NamedTuple):
    """What an operation is given: MaskedTensors and plain tensors, or their masks.

    Attributes:
        x: the operand in question.
        same: another one with the pattern of x.
        other: one with another pattern.
        dense: a plain tensor of the shape of x.
        row: a plain tensor of the shape of the last dimension.
        right: a plain matrix with as many rows as x has columns, masked in part in ``partner``.
        partner: the same with a Boolean mask.
    """

    x: Any
    same: Any
    other: Any
    dense: Any
    row: Any
    right: Any
    partner: Any


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: for test ids.
        run: from a world to a result, or several.
        mask: from a world of masks to the mask of the result, or of each of several.
        layout: from a storage and the rank of the result to the result's layout.
        fits: on which storages it is defined.
        low: the least of the entries it is tried on.
        order: how many derivatives are compared.
    """

    name: str
    run: Callable[[World], Any]
    mask: Callable[[World], Any]
    layout: Callable[[Storage, int], torch.layout]
    fits: Callable[[Storage], bool] = lambda storage: True
    low: float = -2.0
    order: int = 2


def same(storage: Storage, rank: int) -> torch.layout:
    return storage.layout


def like_matrix(storage: Storage, rank: int) -> torch.layout:
    dense = rank - len(storage.dense) == 2 or rank == 2
    return storage.layout if storage.layout in (CSR, CSC) and dense else torch.sparse_coo


def coo(storage: Storage, rank: int) -> torch.layout:
    return torch.sparse_coo


def strided(storage: Storage, rank: int) -> torch.layout:
    return torch.strided


def of_rank(*ranks: int) -> Callable[[Storage], bool]:
    return lambda storage: len(storage.shape) in ranks


def both(w: World) -> Any:
    return w.x & w.other


def _elementwise() -> list[Operation]:
    unary = "exp sin tanh abs neg square sigmoid ceil sign floor erf expm1 atan".split()
    positive = "log sqrt reciprocal rsqrt log1p lgamma digamma".split()
    functions = "relu gelu silu softplus elu leaky_relu hardtanh logsigmoid mish selu softsign".split()
    cases = [Operation(n, lambda w, n=n: getattr(torch, n)(w.x), lambda w: w.x, same) for n in unary]
    cases += [
        Operation(n, lambda w, n=n: getattr(torch, n)(w.x), lambda w: w.x, same, low=0.5) for n in positive
    ]
    cases += [
        Operation(f"F.{n}", lambda w, n=n: getattr(F, n)(w.x), lambda w: w.x, same) for n in functions
    ]
    binary = "add sub mul maximum minimum atan2 hypot logaddexp".split()
    for n in binary:
        f = getattr(torch, n)
        cases += [
            Operation(f"{n} same", lambda w, f=f: f(w.x, w.same), lambda w: w.x, same),
            Operation(f"{n} other", lambda w, f=f: f(w.x, w.other), both, like_matrix),
            Operation(f"{n} dense", lambda w, f=f: f(w.x, w.dense), lambda w: w.x, same),
        ]
    cases += [
        Operation("div by dense", lambda w: w.x / (w.dense.abs() + 1), lambda w: w.x, same),
        Operation("dense - x", lambda w: w.dense - w.x, lambda w: w.x, same),
        Operation("row - x", lambda w: w.row - w.x, lambda w: w.x, same),
        Operation("x * row", lambda w: w.x * w.row, lambda w: w.x, same),
        Operation("3 - x", lambda w: 3 - w.x, lambda w: w.x, same),
        Operation("x ** 3", lambda w: w.x**3, lambda w: w.x, same),
        Operation("x > 0", lambda w: w.x > 0, lambda w: w.x, same),
        Operation("x == other", lambda w: w.x == w.other, both, like_matrix),
        Operation("clamp", lambda w: w.x.clamp(-1, 1), lambda w: w.x, same),
        Operation("add alpha", lambda w: torch.add(w.x, w.same, alpha=2), lambda w: w.x, same),
        Operation("lerp", lambda w: torch.lerp(w.x, w.same, 0.3), lambda w: w.x, same),
        Operation("addcmul", lambda w: torch.addcmul(w.x, w.same, w.other, value=2), both, like_matrix),
        Operation("isnan", lambda w: torch.isnan(w.x), lambda w: w.x, same),
        Operation("frexp", lambda w: tuple(torch.frexp(w.x)), lambda w: (w.x, w.x), same, order=0),
        Operation("prelu", lambda w: F.prelu(w.x, w.row[:1].abs()), lambda w: w.x, same,
                  lambda s: len(s.shape) > 0 and s.shape[-1] > 0),
        Operation("clone", lambda w: w.x.clone(), lambda w: w.x, same),
        Operation("to float32", lambda w: w.x.to(torch.float32), lambda w: w.x, same, order=1),
        Operation(
            "minus mean", lambda w: w.x - w.x.mean(-1, keepdim=True), lambda w: w.x,
            lambda s, r: like_matrix(s, r) if s.dense == () else torch.sparse_coo,
        ),
    ]  # fmt: skip
    return cases


def _dims(storage: Storage) -> range:
    return range(len(storage.shape))


def _reductions() -> list[Operation]:
    cases = []
    formulas: list[tuple[str, Callable[..., Any], int, float]] = [
        *((n, getattr(torch, n), 2, -2.0) for n in ("sum", "mean", "logsumexp")),
        *((n, getattr(torch, n), 1, -2.0) for n in ("amax", "amin", "any", "all", "count_nonzero")),
        ("nansum", torch.nansum, 2, -2.0),
        ("nanmean", torch.nanmean, 2, -2.0),
        ("norm", lambda x, dim, **k: torch.linalg.vector_norm(x, 2, dim, **k), 2, 0.5),
        ("norm 0 at zeros", lambda x, dim, **k: torch.linalg.vector_norm(x, 0, dim, **k), 0, -2.0),
        ("norm 1", lambda x, dim, **k: torch.linalg.vector_norm(x, 1, dim, **k), 1, -2.0),
        ("norm inf", lambda x, dim, **k: torch.linalg.vector_norm(x, float("inf"), dim, **k), 1, -2.0),
        ("norm -inf", lambda x, dim, **k: torch.linalg.vector_norm(x, -float("inf"), dim, **k), 1, -2.0),
        ("norm 3", lambda x, dim, **k: torch.linalg.vector_norm(x, 3, dim, **k), 2, 0.5),
        ("norm -1", lambda x, dim, **k: torch.linalg.vector_norm(x, -1, dim, **k), 2, 0.5),
        ("var", lambda x, dim, **k: torch.var(x, dim, correction=0, **k), 2, -2.0),
        ("std", lambda x, dim, **k: torch.std(x, dim, correction=0, **k), 1, 0.5),
    ]  # fmt: skip
    for name, f, order, low in formulas:
        cases += [
            Operation(f"{name} last", lambda w, f=f: f(w.x, dim=-1), lambda w: w.x.any(-1), _remaining(1),
                      low=low, order=order),
            Operation(f"{name} first", lambda w, f=f: f(w.x, dim=0), lambda w: w.x.any(0), _remaining(0),
                      low=low, order=order),
            Operation(f"{name} all", lambda w, f=f: f(w.x, dim=tuple(range(w.x.ndim))), lambda w: w.x.any(),
                      strided, low=low, order=order),
        ]  # fmt: skip
        if name != "count_nonzero":
            cases.append(
                Operation(f"{name} keepdim", lambda w, f=f: f(w.x, dim=0, keepdim=True),
                          lambda w: w.x.any(0, keepdim=True), _remaining(0), low=low, order=order)
            )  # fmt: skip
    single: list[tuple[str, Callable[..., Any], int]] = [
        ("prod", torch.prod, 2), ("argmax", torch.argmax, 0), ("argmin", torch.argmin, 0),
    ]  # fmt: skip
    for name, f, order in single:
        cases += [
            Operation(f"{name} last", lambda w, f=f: f(w.x, dim=-1), lambda w: w.x.any(-1), _remaining(1), order=order),
            Operation(f"{name} first", lambda w, f=f: f(w.x, 0, True), lambda w: w.x.any(0, keepdim=True),
                      _remaining(0), order=order),
            Operation(f"{name} all", lambda w, f=f: f(w.x), lambda w: w.x.any(), strided, order=order),
        ]  # fmt: skip
    cases += [
        Operation(f"{n} dim", lambda w, n=n: tuple(getattr(torch, n)(w.x, dim=-1)),
                  lambda w: (w.x.any(-1), w.x.any(-1)), _remaining(1), order=1)
        for n in ("max", "min", "aminmax")
    ]  # fmt: skip
    cases += [
        Operation("max all", lambda w: w.x.max(), lambda w: w.x.any(), strided, order=1),
        Operation("var_mean", lambda w: tuple(torch.var_mean(w.x, -1)), lambda w: (w.x.any(-1), w.x.any(-1)),
                  _remaining(1), order=1),
        Operation("std unbiased", lambda w: w.x.std(0, False), lambda w: w.x.any(0), _remaining(0), low=0.5, order=1),
        Operation("sum dtype", lambda w: w.x.sum(-1, dtype=torch.float32), lambda w: w.x.any(-1), _remaining(1),
                  order=1),
        Operation("sum of two dims", lambda w: w.x.sum((0, 1)), lambda w: w.x.any(1).any(0),
                  lambda s, r: torch.sparse_coo if len(s.mask.shape) > 2 else torch.strided, of_rank(2, 3)),
        Operation("p-norm", lambda w: torch.norm(w.x, 2, -1), lambda w: w.x.any(-1), _remaining(1), low=0.5),
        *(
            Operation(f"{n} {dim}", lambda w, n=n, dim=dim: getattr(torch, n)(w.x, dim), lambda w: w.x, same)
            for n in ("softmax", "log_softmax") for dim in (0, -1)
        ),
        Operation("softmin", lambda w: F.softmin(w.x, -1), lambda w: w.x, same),
        Operation("normalize", lambda w: F.normalize(w.x, dim=-1), lambda w: w.x, same, low=0.5),
        Operation("normalize first", lambda w: F.normalize(w.x, dim=0), lambda w: w.x, same, low=0.5),
    ]  # fmt: skip
    return cases


def _remaining(last: int) -> Callable[[Storage, int], torch.layout]:
    """COO if a sparse dimension remains after one is reduced, else dense."""

    def layout(storage: Storage, rank: int) -> torch.layout:
        sparse = storage.mask.ndim
        reduced_is_sparse = not last or not storage.dense
        return torch.sparse_coo if sparse - reduced_is_sparse else torch.strided

    return layout


def _moves() -> list[Operation]:
    """Where the mask of the result is the same function of the masks."""

    def case(
        name: str, run: Callable[[World], Any], layout: Any = like_matrix, fits: Any = of_rank(1, 2, 3)
    ) -> Operation:
        return Operation(name, run, run, layout, fits)

    def turned(s: Storage, rank: int) -> torch.layout:
        if s.dense:
            return like_matrix(s, rank) if rank == 2 else torch.sparse_coo
        return TURNED.get(s.layout, torch.sparse_coo)

    not_empty = lambda s: min(s.shape) > 0 and len(s.shape) > 1  # noqa: E731
    return [
        case("mT", lambda w: w.x.mT, turned, of_rank(2, 3)),
        case("T", lambda w: w.x.T, turned, lambda s: len(s.shape) == 2),
        case("t", lambda w: w.x.t(), turned, lambda s: len(s.shape) == 2),
        case("transpose 0 1", lambda w: w.x.transpose(0, 1),
             lambda s, r: TURNED.get(s.layout, torch.sparse_coo) if s.mask.ndim == 2 else
             (torch.sparse_coo), of_rank(2, 3)),
        case("permute", lambda w: w.x.permute(1, 2, 0), fits=of_rank(3)),
        case("movedim", lambda w: w.x.movedim(0, -1), lambda s, r: turned(s, r) if r == 2 else torch.sparse_coo,
             of_rank(2, 3)),
        case("unsqueeze 0", lambda w: w.x.unsqueeze(0)),
        case("unsqueeze -1", lambda w: w.x.unsqueeze(-1), lambda s, r: s.layout if s.dense else like_matrix(s, r)),
        case("squeeze", lambda w: w.x.unsqueeze(1).squeeze(1), like_matrix),
        case("reshape", lambda w: w.x.reshape(-1, 1), fits=lambda s: min(s.shape) > 0),
        case("flatten", lambda w: w.x.flatten(), lambda s, r: s.layout if len(s.shape) == 1 else torch.sparse_coo),
        case("unflatten", lambda w: w.x.unflatten(0, (1, -1)), fits=not_empty),
        case("expand", lambda w: w.x.unsqueeze(0).expand(2, *w.x.shape)),
        case("flip", lambda w: w.x.flip(0)),
        case("flip all", lambda w: torch.flip(w.x, tuple(range(w.x.ndim)))),
        case("roll", lambda w: w.x.roll(2, 0)),
        case("roll all", lambda w: torch.roll(w.x, 3), same if False else like_matrix),
        case("diagonal", lambda w: w.x.diagonal(), coo, of_rank(2, 3)),
        case("diagonal 1", lambda w: torch.diagonal(w.x, 1), coo, of_rank(2, 3)),
        case("narrow", lambda w: w.x.narrow(0, 1, 2), fits=not_empty),
        case("x[1:]", lambda w: w.x[1:], fits=not_empty),
        case("x[::2]", lambda w: w.x[::2], fits=not_empty),
        case("x[..., 1:]", lambda w: w.x[..., 1:], lambda s, r: s.layout if s.dense else like_matrix(s, r), not_empty),
        case("x[:, None]", lambda w: w.x[:, None]),
        case("x[0]", lambda w: w.x[0], lambda s, r: torch.sparse_coo if s.mask.ndim > 1 else torch.strided,
             lambda s: s.shape[0] > 0),
        case("x[-1]", lambda w: w.x[-1], lambda s, r: torch.sparse_coo if s.mask.ndim > 1 else torch.strided,
             lambda s: s.shape[0] > 0),
        case("x[:, 0]", lambda w: w.x[:, 0], lambda s, r: s.layout if s.mask.ndim == 1 else torch.sparse_coo,
             not_empty),
        case("x[1, 0]", lambda w: w.x[1, 0], lambda s, r: torch.sparse_coo if s.mask.ndim > 2 else torch.strided,
             not_empty),
        case("select", lambda w: w.x.select(0, 1), lambda s, r: torch.sparse_coo if s.mask.ndim > 1 else torch.strided,
             not_empty),
        case("x[[2, 0, 2]]", lambda w: w.x[[2, 0, 2]], fits=lambda s: s.shape[0] > 2),
        case("x[tensor]", lambda w: w.x[torch.tensor([-1, 0])], fits=not_empty),
        case("index_select", lambda w: w.x.index_select(-1, torch.tensor([1, 1, 0])),
             lambda s, r: s.layout if s.dense else like_matrix(s, r), lambda s: s.shape[-1] > 1),
        case("x[rows]", lambda w: w.x[torch.arange(w.x.shape[0]) % 2 == 0]),
        case("x[mask]", lambda w: w.x[(torch.arange(w.x.numel()) % 3 > 0).reshape(w.x.shape)], coo),
        case("x[i, j]", lambda w: w.x[torch.tensor([[0, 1], [1, 1]]), torch.tensor([0, -1])], strided,
             lambda s: s.mask.ndim == 2 and min(s.shape) > 1),
        case("cat", lambda w: torch.cat([w.x, w.other, w.x])),
        case("cat last", lambda w: torch.cat([w.x, w.same], -1),
             lambda s, r: s.layout if s.dense else like_matrix(s, r)),
        case("stack", lambda w: torch.stack([w.x, w.other])),
        case("stack 1", lambda w: torch.stack([w.x, w.same], 1)),
        case("hstack", lambda w: torch.hstack([w.x, w.other])),
        case("vstack", lambda w: torch.vstack([w.x, w.other])),
        case("split", lambda w: torch.split(w.x, 2)),
        case("chunk", lambda w: w.x.chunk(2, -1), lambda s, r: s.layout if s.dense else like_matrix(s, r), not_empty),
        case("tensor_split", lambda w: w.x.tensor_split([1, 2]), fits=not_empty),
        case("unbind", lambda w: w.x.unbind(), lambda s, r: torch.sparse_coo if s.mask.ndim > 1 else torch.strided),
        case("where", lambda w: torch.where(_third(w.x), w.x, w.other)),
        case("where same", lambda w: torch.where(_third(w.x), w.x, w.same)),
    ]  # fmt: skip


def _third(x: Any) -> torch.Tensor:
    return (torch.arange(x.numel()) % 3 == 0).reshape(x.shape)


def _products() -> list[Operation]:
    def meets(a: Any, b: Any) -> Any:
        return (a.double() @ b.double()) > 0

    def full(x: Any) -> Any:
        return torch.ones(x.shape, dtype=torch.bool)

    def product(storage: Storage, rank: int) -> torch.layout:
        return storage.layout if storage.layout in (CSR, CSC) and rank == 2 else torch.sparse_coo

    matrices, matrix = of_rank(2, 3), of_rank(2)
    flat_matrix = lambda s: len(s.shape) == 2 and not s.dense  # noqa: E731
    return [
        Operation("x @ dense", lambda w: w.x @ w.right, lambda w: meets(w.x, full(w.right)), strided, matrices),
        Operation("x @ masked", lambda w: w.x @ w.partner, lambda w: meets(w.x, w.partner), strided, matrices),
        Operation("dense @ x", lambda w: w.right.mT @ w.x.mT, lambda w: meets(full(w.right.mT), w.x.mT), strided, matrices),
        Operation("masked @ x", lambda w: w.partner.mT @ w.x.mT, lambda w: meets(w.partner.mT, w.x.mT), strided, matrices),
        Operation("x @ vector", lambda w: w.x @ w.row, lambda w: meets(w.x, full(w.row)), strided, matrices),
        Operation("vector @ x", lambda w: w.row @ w.x.mT, lambda w: meets(full(w.row), w.x.mT), strided, matrices),
        Operation("x @ batch", lambda w: w.x @ torch.stack([w.right, -w.right]),
                  lambda w: torch.stack([meets(w.x, full(w.right))] * 2), strided, matrix),
        Operation("x @ other.T", lambda w: w.x @ w.other.mT, lambda w: meets(w.x, w.other.mT), product, matrices),
        Operation("mm", lambda w: torch.mm(w.x, w.right), lambda w: meets(w.x, full(w.right)), strided, matrix),
        Operation("linear weight", lambda w: F.linear(w.right.mT, w.x, torch.ones(w.x.shape[0], dtype=torch.float64)),
                  lambda w: meets(full(w.right.mT), w.x.mT), strided, matrix),
        Operation("linear input", lambda w: F.linear(w.x, w.right.mT), lambda w: meets(w.x, full(w.right)), strided,
                  matrices),
        Operation("addmm", lambda w: torch.addmm(w.right[:1].sum(0), w.x, w.right, beta=2, alpha=3),
                  lambda w: meets(w.x, full(w.right)), strided, lambda s: flat_matrix(s) and s.shape[1] > 0),
        Operation("dot", lambda w: torch.dot(w.x, w.other), lambda w: (w.x & w.other).any(), strided, of_rank(1)),
        Operation("outer", lambda w: torch.outer(w.x, w.other), lambda w: w.x[:, None] & w.other[None, :], coo, of_rank(1)),
        Operation("inner", lambda w: torch.inner(w.x, w.row), lambda w: meets(w.x, full(w.row)), strided, of_rank(1, 2)),
        Operation("trace", lambda w: w.x.trace(), lambda w: w.x.diagonal().any(), strided, of_rank(2)),
    ]  # fmt: skip


def _losses() -> list[Operation]:
    cases = []
    plain: list[tuple[str, Callable[..., Any], float]] = [
        ("mse_loss", F.mse_loss, -2.0), ("l1_loss", F.l1_loss, -2.0), ("smooth_l1_loss", F.smooth_l1_loss, -2.0),
        ("huber_loss", F.huber_loss, -2.0), ("poisson_nll_loss", F.poisson_nll_loss, 0.5),
        ("kl_div", lambda x, y, reduction: F.kl_div(-x, y, reduction="batchmean" if reduction == "mean" else reduction),
         0.5),
        ("bce", lambda x, y, reduction: F.binary_cross_entropy(x / 9, y / 9, reduction=reduction), 0.5),
        ("bce weights", lambda x, y, reduction: F.binary_cross_entropy(x / 9, y / 9, y * 0 + 3, reduction=reduction), 0.5),
        ("bce logits", F.binary_cross_entropy_with_logits, 0.5), ("soft_margin", F.soft_margin_loss, -2.0),
        ("gaussian", lambda x, y, reduction: F.gaussian_nll_loss(x, y, y * y + 1, reduction=reduction), 0.5),
        ("hinge", lambda x, y, reduction: F.hinge_embedding_loss(x, torch.sign(y), reduction=reduction), 0.5),
        ("margin", lambda x, y, reduction: F.margin_ranking_loss(x, y, torch.sign(y), reduction=reduction), 0.5),
        ("weighted mse", lambda x, y, reduction: F.mse_loss(x, y, weight=y * y + 1, reduction=reduction), -2.0),
        ("weighted l1", lambda x, y, reduction: F.l1_loss(x, y, weight=y * y + 1, reduction=reduction), -2.0),
        ("weighted huber", lambda x, y, reduction: F.huber_loss(x, y, weight=y * y + 1, reduction=reduction), -2.0),
    ]  # fmt: skip
    for name, f, low in plain:
        cases += [
            Operation(f"{name} dense", lambda w, f=f: f(w.x, w.dense.abs(), reduction="mean"), lambda w: w.x.any(),
                      strided, low=low, order=1),
            Operation(f"{name} sum", lambda w, f=f: f(w.x, w.same, reduction="sum"), lambda w: w.x.any(), strided,
                      low=low, order=1),
            Operation(f"{name} none", lambda w, f=f: f(w.x, w.other, reduction="none"), both, like_matrix, low=low,
                      order=1),
            Operation(f"{name} other", lambda w, f=f: f(w.x, w.other, reduction="mean"), lambda w: both(w).any(),
                      strided, low=low, order=1),
        ]  # fmt: skip
    return cases


OPERATIONS: tuple[Operation, ...] = (*_elementwise(), *_reductions(), *_moves(), *_products(), *_losses())
