"""Rearrangements, indexing, joins and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests.laws.storage.expectations import Operation, World, coo, of_rank, strided
from tests.laws.storage.layouts import TURNED, Storage

__all__ = ["MOVEMENTS", "PRODUCTS"]

ANY_RANK = of_rank(1, 2, 3, 4)


def _moves() -> list[Operation]:
    """Where the mask of the result is the same function of the masks."""

    def case(name: str, run: Callable[[World], Any], layout: Any = coo, fits: Any = ANY_RANK) -> Operation:
        return Operation(name, run, run, layout, fits)

    def turned(s: Storage, rank: int) -> torch.layout:
        """Exchanging the last two dimensions, which may be the sparse ones."""
        return torch.sparse_coo if s.dense else TURNED.get(s.layout, torch.sparse_coo)

    def flat(s: Storage, rank: int) -> torch.layout:
        return s.layout if len(s.shape) == 1 else torch.sparse_coo

    def first_taken(s: Storage, rank: int) -> torch.layout:
        """Without the first dimension."""
        return torch.sparse_coo if len(s.shape) > 1 else torch.strided

    not_empty = lambda s: min(s.shape) > 0 and len(s.shape) > 1  # noqa: E731
    return [
        case("mT", lambda w: w.x.mT, turned, of_rank(2, 3, 4)),
        case("T", lambda w: w.x.T, turned, lambda s: len(s.shape) == 2),
        case("t", lambda w: w.x.t(), turned, lambda s: len(s.shape) == 2),
        case("transpose 0 1", lambda w: w.x.transpose(0, 1),
             lambda s, r: TURNED.get(s.layout, torch.sparse_coo) if s.mask.ndim == 2 else torch.sparse_coo,
             of_rank(2, 3, 4)),
        case("permute", lambda w: w.x.permute(1, 2, 0), coo, fits=of_rank(3)),
        case("movedim", lambda w: w.x.movedim(0, -1), lambda s, r: turned(s, r) if r == 2 else torch.sparse_coo,
             of_rank(2, 3, 4)),
        case("unsqueeze 0", lambda w: w.x.unsqueeze(0)),
        case("unsqueeze -1", lambda w: w.x.unsqueeze(-1), coo),
        case("squeeze", lambda w: w.x.unsqueeze(1).squeeze(1), coo),
        case("reshape", lambda w: w.x.reshape(-1, 1), coo, fits=lambda s: min(s.shape) > 0),
        case("flatten", lambda w: w.x.flatten(), flat),
        case("unflatten", lambda w: w.x.unflatten(0, (1, -1)), coo, fits=not_empty),
        case("expand", lambda w: w.x.unsqueeze(0).expand(2, *w.x.shape)),
        case("flip", lambda w: w.x.flip(0)),
        case("flip all", lambda w: torch.flip(w.x, tuple(range(w.x.ndim))), coo),
        case("roll", lambda w: w.x.roll(2, 0)),
        case("roll all", lambda w: torch.roll(w.x, 3), flat),
        case("diagonal", lambda w: w.x.diagonal(), coo, of_rank(2, 3, 4)),
        case("diagonal 1", lambda w: torch.diagonal(w.x, 1), coo, of_rank(2, 3, 4)),
        case("narrow", lambda w: w.x.narrow(0, 1, 2), fits=lambda s: s.shape[0] > 2),
        case("x[1:]", lambda w: w.x[1:], fits=not_empty),
        case("x[::2]", lambda w: w.x[::2], fits=not_empty),
        case("x[..., 1:]", lambda w: w.x[..., 1:], coo, not_empty),
        case("x[:, None]", lambda w: w.x[:, None]),
        case("x[0]", lambda w: w.x[0], first_taken, lambda s: s.shape[0] > 0),
        case("x[-1]", lambda w: w.x[-1], first_taken, lambda s: s.shape[0] > 0),
        case("x[:, 0]", lambda w: w.x[:, 0], lambda s, r: s.layout if s.mask.ndim == 1 else torch.sparse_coo,
             not_empty),
        case("x[1, 0]", lambda w: w.x[1, 0], lambda s, r: torch.sparse_coo if len(s.shape) > 2 else torch.strided,
             not_empty),
        case("select", lambda w: w.x.select(0, 1), first_taken, not_empty),
        case("x[[2, 0, 2]]", lambda w: w.x[[2, 0, 2]], fits=lambda s: s.shape[0] > 2),
        case("x[tensor]", lambda w: w.x[torch.tensor([-1, 0])], fits=not_empty),
        case("index_select", lambda w: w.x.index_select(-1, torch.tensor([1, 1, 0])),
             coo, lambda s: s.shape[-1] > 1),
        case("x[rows]", lambda w: w.x[torch.arange(w.x.shape[0]) % 2 == 0]),
        case("x[mask]", lambda w: w.x[(torch.arange(w.x.numel()) % 3 > 0).reshape(w.x.shape)], coo),
        case("x[i, j]", lambda w: w.x[torch.tensor([[0, 1], [1, 1]]), torch.tensor([0, -1])], strided,
             lambda s: s.mask.ndim == 2 and min(s.shape) > 1),
        case("cat", lambda w: torch.cat([w.x, w.other, w.x])),
        case("cat last", lambda w: torch.cat([w.x, w.same], -1), coo),
        case("stack", lambda w: torch.stack([w.x, w.other])),
        case("stack 1", lambda w: torch.stack([w.x, w.same], 1)),
        case("hstack", lambda w: torch.hstack([w.x, w.other])),
        case("vstack", lambda w: torch.vstack([w.x, w.other])),
        case("split", lambda w: torch.split(w.x, 2)),
        case("chunk", lambda w: w.x.chunk(2, -1), coo, not_empty),
        case("tensor_split", lambda w: w.x.tensor_split([1, 2]), fits=not_empty),
        case("unbind", lambda w: w.x.unbind(), first_taken, lambda s: s.shape[0] > 0),
        case("where", lambda w: torch.where(_third(w.x), w.x, w.other), coo),
        case("where same", lambda w: torch.where(_third(w.x), w.x, w.same), coo),
    ]  # fmt: skip


def _third(x: Any) -> torch.Tensor:
    return (torch.arange(x.numel()) % 3 == 0).reshape(x.shape)


def _products() -> list[Operation]:
    def meets(a: Any, b: Any) -> Any:
        return (a.double() @ b.double()) > 0

    def full(x: Any) -> Any:
        return torch.ones(x.shape, dtype=torch.bool)

    matrices, matrix = of_rank(2, 3), of_rank(2)
    flat_matrix = lambda s: len(s.shape) == 2 and not s.dense  # noqa: E731
    return [
        Operation("x @ dense", lambda w: w.x @ w.right, lambda w: meets(w.x, full(w.right)), strided, matrices),
        Operation("x @ masked", lambda w: w.x @ w.partner, lambda w: meets(w.x, w.partner), strided, matrices),
        Operation("dense @ x", lambda w: w.right.mT @ w.x.mT, lambda w: meets(full(w.right.mT), w.x.mT),
                  strided, matrices),
        Operation("masked @ x", lambda w: w.partner.mT @ w.x.mT, lambda w: meets(w.partner.mT, w.x.mT),
                  strided, matrices),
        Operation("x @ vector", lambda w: w.x @ w.row, lambda w: meets(w.x, full(w.row)), strided, matrices),
        Operation("vector @ x", lambda w: w.row @ w.x.mT, lambda w: meets(full(w.row), w.x.mT), strided, matrices),
        Operation("x @ batch", lambda w: w.x @ torch.stack([w.right, -w.right]),
                  lambda w: torch.stack([meets(w.x, full(w.right))] * 2), strided, matrix),
        Operation("x @ other.T", lambda w: w.x @ w.other.mT, lambda w: meets(w.x, w.other.mT), coo, matrices),
        Operation("mm", lambda w: torch.mm(w.x, w.right), lambda w: meets(w.x, full(w.right)), strided, matrix),
        Operation("linear weight", lambda w: F.linear(w.right.mT, w.x, torch.ones(w.x.shape[0], dtype=torch.float64)),
                  lambda w: meets(full(w.right.mT), w.x.mT), strided, matrix),
        Operation("linear input", lambda w: F.linear(w.x, w.right.mT), lambda w: meets(w.x, full(w.right)), strided,
                  matrix),
        Operation("addmm", lambda w: torch.addmm(w.right[:1].sum(0), w.x, w.right, beta=2, alpha=3),
                  lambda w: meets(w.x, full(w.right)), strided, lambda s: flat_matrix(s) and s.shape[1] > 0),
        Operation("dot", lambda w: torch.dot(w.x, w.other), lambda w: (w.x & w.other).any(), strided, of_rank(1)),
        Operation("outer", lambda w: torch.outer(w.x, w.other), lambda w: w.x[:, None] & w.other[None, :], coo,
                  of_rank(1)),
        Operation("inner", lambda w: torch.inner(w.x, w.row), lambda w: meets(w.x, full(w.row)), strided,
                  of_rank(1, 2)),
        Operation("trace", lambda w: w.x.trace(), lambda w: w.x.diagonal().any(), strided, of_rank(2),
                  nothing=0),
    ]  # fmt: skip


MOVEMENTS, PRODUCTS = _moves(), _products()
