"""``mg.aggregate`` and the accumulator's means, beside loops over documents; splits, ranks, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.unit.documents.rows import SHAPES, D, Rows, rows

HOW: dict[str, dict[str, Any]] = {
    "token-mean": {},
    "seq-mean-token-mean": {},
    "seq-mean-token-sum": {},
    "seq-mean-token-sum-norm": {"constant": 7.0},
}


def expected(parts: list[Tensor], how: Any) -> Tensor:
    """The definition, document by document."""
    parts = [part.flatten() for part in parts if part.numel()]
    if not parts:
        return torch.tensor(torch.nan, dtype=D)
    if how == "token-mean":
        return torch.cat(parts).mean()
    per: Any = {
        "seq-mean-token-mean": lambda p: p.mean(),
        "seq-mean-token-sum": lambda p: p.sum(),
        "seq-mean-token-sum-norm": lambda p: p.sum() / 7.0,
    }[how]
    return torch.stack([per(part) for part in parts]).mean()


def forms(r: Rows) -> dict[str, tuple[Any, dict[str, Any], list[Tensor]]]:
    """Losses, arguments, and the entries of each sequence; in half of them some tokens do not count."""
    inside = r.ids >= 0
    counts = inside & (torch.arange(inside.numel()).reshape(inside.shape) % 3 != 1)
    mask = counts.reshape(*counts.shape, *[1] * (r.x.ndim - 2))
    documents = r.documents(r.x)
    chosen = [s[torch.tensor([bool(counts[p]) for p in d])] for s, d in zip(documents, r.places, strict=True)]
    by_row = [line[kept] for line, kept in zip(r.x, counts, strict=True)]
    return {
        "plain, documents": (r.x, {"documents": r.ids}, documents),
        "mask, documents": (r.x, {"documents": r.ids, "mask": mask}, chosen),
        "masked, documents": (mg.masked(r.x, mask.expand(r.x.shape)), {"documents": r.ids}, chosen),
        "masked": (mg.masked(r.x, mask.expand(r.x.shape)), {}, by_row),
        "mask": (r.x, {"mask": mask}, by_row),
        "jagged": (mg.unpack_documents(r.x, segment_ids=r.ids), {}, documents),
    }


@pytest.mark.parametrize("features", [(), (2,)], ids=str)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", SHAPES)
def test_number_and_gradient_are_those_of_a_loop(name: str, how: Any, features: tuple[int, ...]) -> None:
    r = rows(name, *features)
    for losses, given, parts in forms(r).values():
        found, wanted = mg.aggregate(losses, how, **given, **HOW[how]), expected(parts, how)
        assert type(found) is Tensor
        torch.testing.assert_close(found, wanted, equal_nan=True)
        (gradient,) = torch.autograd.grad(found, r.x, retain_graph=True)
        whole = torch.zeros_like(r.x)
        if wanted.requires_grad:
            (whole,) = torch.autograd.grad(wanted, r.x, retain_graph=True)
        torch.testing.assert_close(gradient, whole)


@pytest.mark.parametrize("how", HOW)
def test_graphs(how: Any) -> None:
    def function(x: Tensor, ids: Tensor) -> Tensor:
        return mg.aggregate(torch.where(ids >= 0, x, torch.nan).square(), how, ids, **HOW[how])

    ids = torch.tensor(SHAPES["gaps"])
    x = torch.randn(ids.shape, dtype=D, requires_grad=True)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    results = [f(x, ids) for f in (function, compiled)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result, x)[0] for result in results))


def test_half_precision_is_summed_in_single() -> None:
    ids = torch.arange(3).repeat_interleave(1365)[None]
    losses = torch.ones(ids.shape, dtype=torch.bfloat16)
    assert mg.aggregate(losses, "seq-mean-token-sum", ids).item() == 1368  # 1365, as bfloat16


PACKED = torch.tensor([[0, 0, 0, 1, -1], [3, 1, 1, 1, 2], [0, -1, -1, -1, -1], [-1] * 5, [7, 7, 2, 2, 2]])


@pytest.mark.parametrize("how", HOW)
def test_any_split_into_micro_batches_gives_the_same(how: Any) -> None:
    x, w = torch.randn(PACKED.shape, dtype=D), torch.tensor(2.0, dtype=D, requires_grad=True)
    loss = mg.aggregate((w * x).square(), how, PACKED, **HOW[how])
    (gradient,) = torch.autograd.grad(loss, w)
    for cuts in ([0, 5], [0, 1, 5], [0, 2, 3, 4, 5]):
        v = torch.nn.Parameter(w.detach())
        accumulator = mg.GradientAccumulator([v], mean=how, **HOW[how])
        for part in (slice(*cut) for cut in itertools.pairwise(cuts)):
            losses = torch.where(PACKED[part] < 0, torch.nan, (v * x[part]).square())
            accumulator.backward(losses, documents=PACKED[part])
        torch.testing.assert_close((accumulator.finish(), v.grad), (loss.detach(), gradient))


def test_old_names_warn_and_load() -> None:
    w, losses = torch.nn.Parameter(torch.ones(())), mg.masked(torch.ones(2, 2))
    for old, new in (("entry", "token-mean"), ("sequence", "seq-mean-token-mean")):
        with pytest.warns(DeprecationWarning, match=f"mean='{old}' is deprecated; write mean='{new}'$"):
            accumulator = mg.GradientAccumulator([w], mean=old)  # type: ignore[arg-type]
        accumulator.backward(w * losses)
        state = accumulator.state_dict()
        assert state["mean"] == [new]
        accumulator.reset()
        accumulator.load_state_dict({**state, "mean": [old]})  # saved by an earlier version
        accumulator.reset()
