"""Distances: torch's own between the coordinates that both vectors specify."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, assert_number, gradient, inf, leaf, nan, poisoned

A = [[0.0, None, 1.0], [None, None, 2.0], [None, 5.0, None]]
B = [[3.0, 7.0, 5.0], [None, None, None], [1.0, 5.0, None]]


def random(*shape: int, garbage: float = nan, density: float = 0.6) -> tuple[Tensor, Tensor]:
    mask = torch.rand(shape) < density
    return torch.where(mask, torch.randn(shape).double(), garbage).requires_grad_(), mask


def deleted(function: Any, x: Tensor, y: Tensor, both: Tensor) -> Tensor:
    return function(x[both][None], y[both][None]).reshape(()) if both.any() else x[both].sum() + y[both].sum()


def assert_agrees(
    found: Any, rows: list[Tensor], known: Tensor, leaves: list[Tensor], masks: list[Tensor]
) -> None:
    expected = torch.stack(rows).reshape(known.shape)
    if isinstance(found, mg.MaskedTensor):
        assert torch.equal(found.mask, known)
        found = found.filled(0)
    torch.testing.assert_close(found, expected.where(known, 0), rtol=1e-6, atol=1e-8)
    noise = torch.where(known, torch.randn(known.shape).double(), 0)
    zero = sum(0 * v[m].sum() for v, m in zip(leaves, masks, strict=True))
    wanted = torch.autograd.grad((expected * noise).sum() + zero, leaves)
    torch.testing.assert_close(
        torch.autograd.grad((found * noise).sum(), leaves), wanted, rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("garbage", [nan, inf, 1e38])
@pytest.mark.parametrize(
    ("p", "mode"),
    [(2.0, None), (2.0, "use_mm_for_euclid_dist"), (2.0, "donot_use_mm_for_euclid_dist"),
     (1.0, None), (0.0, None), (3.5, None), (inf, None), (0.5, None)],
)  # fmt: skip
def test_cdist(p: float, mode: str | None, garbage: float) -> None:
    (x, p_x), (y, p_y) = random(5, 4, garbage=garbage), random(6, 4, garbage=garbage)
    options = {"p": p} | ({} if mode is None else {"compute_mode": mode})
    found = torch.cdist(mg.masked(x, p_x), mg.masked(y, p_y), **options)
    rows = [
        deleted(lambda a, b: torch.cdist(a, b, p), x[i], y[j], p_x[i] & p_y[j])
        for i in range(5)
        for j in range(6)
    ]
    assert_agrees(found, rows, (p_x.double() @ p_y.double().T) > 0, [x, y], [p_x, p_y])


def test_rows_with_themselves_have_finite_gradients() -> None:
    x, known = random(30, 3)
    same = torch.cdist(mg.masked(x, known), mg.masked(x, known))
    assert torch.autograd.grad(same.filled(0).sum(), x)[0].isfinite().all()


def test_cdist_one_side_plain_and_batches() -> None:
    a, b = poisoned(A), torch.tensor([[3.0, 7.0, 5.0], [0.0, 0.0, 1.0]]).double()
    assert_entries(torch.cdist(a, b), [[5.0, 0.0], [3.0, 1.0], [2.0, 5.0]])
    assert_entries(
        torch.cdist(torch.stack([a, a]), poisoned(B))[1],
        [[5.0, None, 1.0], [3.0, None, None], [2.0, None, 0.0]],
    )
    assert_entries(torch.cdist(x1=a, x2=b, p=1.0)[0], [7.0, 0.0])


def test_cdist_mistakes_are_torchs() -> None:
    with pytest.raises(RuntimeError, match="same number of columns"):
        torch.cdist(poisoned(A), torch.ones(2, 2).double())
    with pytest.raises(RuntimeError, match="non-negative p"):
        torch.cdist(poisoned(A), poisoned(B), -1.0)
    with pytest.raises(ValueError, match="compute_mode"):
        torch.cdist(poisoned(A), poisoned(B), 2.0, "fast")


def test_a_real_nan_shows() -> None:
    for p in (0.0, 1.0, 2.0):
        assert_entries(torch.cdist(poisoned([[nan, 1.0, None]]), torch.ones(1, 3).double(), p), [[nan]])
    assert_entries(torch.cdist(poisoned([[1.0, None]]), leaf([3.0, inf])), [[2.0]])
    assert_entries(
        torch.cdist(poisoned([[1.0, None]]), leaf([3.0, inf]), 2.0, "use_mm_for_euclid_dist"), [[2.0]]
    )


@pytest.mark.parametrize("p", [2.0, 1.0, inf])
def test_pdist(p: float) -> None:
    x, mask = random(6, 3)
    pairs = list(itertools.combinations(range(6), 2))
    rows = [deleted(lambda a, b: torch.dist(a, b, p), x[i], x[j], mask[i] & mask[j]) for i, j in pairs]
    known = torch.stack([(mask[i] & mask[j]).any() for i, j in pairs])
    assert_agrees(F.pdist(mg.masked(x, mask), p), rows, known, [x], [mask])
    assert F.pdist(mg.masked(torch.ones(1, 3))).shape == (0,)
    with pytest.raises(RuntimeError, match="2D"):
        F.pdist(mg.masked(torch.ones(3)))


@pytest.mark.parametrize("p", [2, 1, inf, -inf])
def test_dist(p: float) -> None:
    (x, p_x), (y, p_y) = random(4, 3), random(3)
    found = torch.dist(mg.masked(x, p_x), mg.masked(y, p_y), p)
    both = p_x & p_y
    rows = [torch.dist(x[both], y.expand(4, 3)[both], p)]
    assert type(found) is (mg.MaskedTensor if abs(p) == inf else Tensor)
    assert_agrees(found, rows, both.any(), [x, y], [p_x, p_y])
    assert_number(torch.dist(poisoned([1.0, None, 3.0]), torch.tensor([1.0, 2.0, 0.0]).double(), 0), 1.0)


@pytest.mark.parametrize("p", [0.5, 1, 2, 3])
def test_dist_of_nothing_is_zero(p: float) -> None:
    a, b = poisoned([1.0, None], requires_grad=True), poisoned([None, 1.0], requires_grad=True)
    assert_nothing(a.dist(b, p), 0.0, a, b)
    assert_number(a.dist(b, 0), 0.0)


@pytest.mark.parametrize("p", [inf, -inf, -1, -2.0])
def test_dist_of_nothing_is_unspecified_where_an_empty_tensor_has_none(p: float) -> None:
    with pytest.raises(RuntimeError):
        torch.dist(torch.zeros(0), torch.zeros(0), p)
    a = poisoned([1.0, None], requires_grad=True)
    assert_entries(a.dist(poisoned([None, 1.0]), p), None)
    assert gradient(torch.dist(a, poisoned([None, 1.0]), p), a).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "function", [F.pairwise_distance, lambda a, b: F.pairwise_distance(a, b, 1.0, 0.1), F.cosine_similarity]
)
def test_rows_with_rows(function: Any) -> None:
    (x, p_x), (y, p_y) = random(7, 3), random(7, 3)
    rows = [deleted(function, x[i], y[i], p_x[i] & p_y[i]) for i in range(7)]
    assert_agrees(
        function(mg.masked(x, p_x), mg.masked(y, p_y)), rows, (p_x & p_y).any(1), [x, y], [p_x, p_y]
    )


def test_arguments() -> None:
    x, y = poisoned([[3.0, None], [4.0, None]], requires_grad=True), torch.tensor([[0.0], [0.0]]).double()
    assert_entries(F.pairwise_distance(x, y, eps=0.0, keepdim=True), [[3.0], [4.0]])
    assert_entries(F.cosine_similarity(x, y + 1, dim=0), [7 / 5 / math.sqrt(2), None])
    assert_entries(nn.CosineSimilarity(dim=1)(x, y + 1), [1.0, 1.0])
    assert_entries(nn.PairwiseDistance(p=1, eps=0.0)(poisoned([1.0, None]), poisoned([None, 2.0])), None)
    assert gradient(F.cosine_similarity(x, y + 1, dim=0), x)[:, 1].tolist() == [0.0, 0.0]


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_nothing_in_common_makes_no_anomaly() -> None:
    x = poisoned([[1.0, None], [None, None]], requires_grad=True)
    with torch.autograd.detect_anomaly():
        for result in (F.cosine_similarity(x, x), F.pairwise_distance(x, x), torch.cdist(x, x), F.pdist(x)):
            assert gradient(result, x).isfinite().all()


def test_halves() -> None:
    x = poisoned([[3, None, 4]], torch.bfloat16)
    assert_entries(
        F.pairwise_distance(x, torch.zeros(1, 3, dtype=torch.bfloat16), eps=0.0), [5.0], torch.bfloat16
    )


def test_compiled() -> None:
    a, b = poisoned(A), poisoned(B)

    def f(a: Any, b: Any) -> Any:
        return (
            torch.cdist(a, b),
            F.pdist(a),
            torch.dist(a, b),
            F.pairwise_distance(a, b),
            F.cosine_similarity(a, b),
        )

    for found, expected in zip(torch.compile(f, fullgraph=True, backend="eager")(a, b), f(a, b), strict=True):
        assert type(found) is type(expected)
        if isinstance(found, mg.MaskedTensor):
            assert torch.equal(found.mask, expected.mask)
        pair = [part.filled(0) if isinstance(part, mg.MaskedTensor) else part for part in (found, expected)]
        torch.testing.assert_close(*pair)


def test_second_derivatives() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 1, 1]]).bool()
    y = torch.randn(2, 3).double()

    def f(entries: Tensor) -> Tensor:
        x = mg.masked(torch.full((2, 3), nan).double().masked_scatter(mask, entries), mask)
        parts = (
            torch.cdist(x, y),
            torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"),
            F.cosine_similarity(x, y)[None],
        )
        return torch.cat([part.filled(0.0) for part in parts])

    point = torch.randn(5).double().requires_grad_()
    assert torch.autograd.gradcheck(f, point)
    assert torch.autograd.gradgradcheck(f, point)
