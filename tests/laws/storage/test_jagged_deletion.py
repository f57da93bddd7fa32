"""Law 3 along the ragged dimension: each sequence is seen alone. What has too few features is unspecified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.laws.storage.layouts import Storage, boolean, stored
from tests.laws.storage.test_conformance import filled
from tests.laws.storage.test_jagged import SOME, distinct


def named(name: str) -> Callable[[Any, int], Any]:
    function: Callable[..., Any] = getattr(torch, name)
    return function


#: Along the ragged dimension; PyTorch's function on each sequence alone is the oracle.
REDUCTIONS: dict[str, Callable[[Any, int], Any]] = {
    **{
        name: named(name)
        for name in ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "any", "all", "logsumexp",
                     "count_nonzero")
    },
    "max": lambda x, dim: torch.max(x, dim)[0],
    "median": lambda x, dim: torch.median(x, dim)[0],
    "quantile": lambda x, dim: torch.quantile(x, 0.3, dim),
    "var": lambda x, dim: torch.var(x, dim, correction=0),
    "std": lambda x, dim: torch.std(x, dim, correction=0),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, 3, dim),
}  # fmt: skip
KEEPING: dict[str, Callable[[Any, int], Any]] = {
    **{name: named(name) for name in ("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp")},
    "cummax": lambda x, dim: torch.cummax(x, dim)[0],
    "sort": lambda x, dim: torch.sort(x, dim)[0],
    "argsort": lambda x, dim: torch.argsort(x, dim, True),
    "normalize": lambda x, dim: torch.nn.functional.normalize(x, dim=dim),
}


def sequences_of(x: Tensor, storage: Storage) -> list[Tensor]:
    """Each sequence alone (length, *features), from a tensor of the whole shape."""
    depth = storage.mask.ndim
    rows = x.movedim(storage.places, tuple(range(depth))).flatten(0, depth - 2)
    lengths = storage.mask.sum(-1).reshape(-1).tolist()
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def whole(x: mg.MaskedTensor) -> Tensor:
    """Zeros of its own dtype where nothing is specified."""
    return x.filled(torch.zeros((), dtype=x.dtype))


@pytest.mark.layouts(per=lambda name: name, keep=2)
@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_sees_each_sequence_alone(name: str, storage: Storage) -> None:
    entries = distinct(storage)
    result = REDUCTIONS[name](stored(storage, entries), storage.places[-1])
    plain = boolean(storage, entries).filled(0)
    expected = [REDUCTIONS[name](part, 0) if len(part) else None for part in sequences_of(plain, storage)]
    depth = storage.mask.ndim - 1
    places = [place - (place > storage.places[-1]) for place in storage.places[:-1]]
    found = whole(result).movedim(places, tuple(range(depth))).flatten(0, depth - 1)
    known = result.mask.movedim(places, tuple(range(depth))).flatten(0, depth - 1)
    for row, mask, alone in zip(found, known, expected, strict=True):
        assert bool(mask.all()) is (alone is not None)
        assert alone is None or mask.any()
        torch.testing.assert_close(row, torch.zeros_like(row) if alone is None else alone)
    if result.requires_grad:
        same_gradients(found.sum(), sum(part.sum() for part in expected if part is not None), entries)


@pytest.mark.layouts(per=lambda name: name, keep=2)
@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_the_rows_sees_each_sequence_alone(name: str, storage: Storage) -> None:
    entries = distinct(storage)
    result = KEEPING[name](stored(storage, entries), storage.places[-1])
    assert result.layout == torch.jagged
    assert result.mask.tolist() == storage.whole_mask.tolist()
    parts = sequences_of(boolean(storage, entries).filled(0), storage)
    if name == "argsort":  # the third argument means descending
        parts = [part.detach() for part in parts]
    expected = [KEEPING[name](part, 0) for part in parts]
    found = sequences_of(result.filled(0), storage)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    if result.requires_grad:
        weighted = [
            sum((p * torch.arange(p.numel()).reshape(p.shape)).sum() for p in q) for q in (found, expected)
        ]
        same_gradients(weighted[0], weighted[1], entries)


def same_gradients(ours: Any, theirs: Any, entries: Tensor) -> None:
    """To the second order."""
    first = [torch.autograd.grad(total, entries, create_graph=True)[0] for total in (ours, theirs)]
    torch.testing.assert_close(*first)
    if first[0].requires_grad and first[1].requires_grad:
        second = [torch.autograd.grad((grad**2).sum(), entries, allow_unused=True)[0] for grad in first]
        torch.testing.assert_close(*[torch.zeros(len(entries)).double() if g is None else g for g in second])


@pytest.mark.every
@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "any", "logsumexp", "var", "std", "var_mean", "std_mean", "count_nonzero"]
)
def test_too_few_features_are_unspecified_as_on_a_mask(name: str, size: int) -> None:
    lengths, data = torch.tensor([2, 0, 3]), torch.rand(3, 4, size, dtype=torch.float64)
    x, plain = (mg.from_lengths(data, lengths, layout=layout) for layout in (torch.jagged, torch.strided))
    options: list[dict[str, Any]] = [{}]
    if name.startswith(("var", "std")):
        options += [{"correction": 0}, {"correction": 2}, {"unbiased": False}, {"unbiased": True}]
    for given in options:
        results = [getattr(torch, name)(t, dim=-1, **given) for t in (x, plain)]
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True)
        for found, expected in pairs:
            assert torch.equal(found.mask, expected.mask), given
            torch.testing.assert_close(filled(found), filled(expected))


@pytest.mark.every
@pytest.mark.parametrize(
    "run",
    [
        lambda x: x @ torch.ones(0, 2),
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 0), torch.ones(2)),
        lambda x: torch.nn.functional.cosine_similarity(x, x, dim=-1),
        lambda x: torch.nn.functional.pairwise_distance(x, x),
    ],
    ids=["matmul", "linear", "cosine_similarity", "pairwise_distance"],
)
def test_products_without_factors_are_unspecified_as_on_a_mask(run: Callable[[Any], Any]) -> None:
    x = mg.from_lengths(torch.rand(3, 4, 0), torch.tensor([2, 0, 3]), layout=torch.jagged)
    found, expected = run(x), run(x.to_dense())
    assert torch.equal(found.mask, expected.mask)
    assert torch.equal(filled(found), filled(expected))
