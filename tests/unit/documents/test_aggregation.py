"""``mg.aggregate`` and the accumulator's means, beside loops over documents; splits, ranks, refusals."""

from __future__ import annotations

import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.gradients import accumulation
from maskgrad.gradients.accumulation_ranks import Alone
from tests.ranks import run_on_ranks
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
        whole = (
            torch.autograd.grad(wanted, r.x, retain_graph=True)[0]
            if wanted.requires_grad
            else torch.zeros_like(r.x)
        )
        torch.testing.assert_close(gradient, whole)
        assert gradient[r.ids < 0].eq(0).all()


@pytest.mark.parametrize("how", HOW)
def test_second_derivatives_and_graphs(how: Any) -> None:
    ids = torch.tensor(SHAPES["gaps"])

    def function(x: Tensor, ids: Tensor) -> Tensor:
        kept = torch.where(ids >= 0, x, torch.nan)
        return mg.aggregate(kept * kept, how, ids, **HOW[how])

    x = torch.randn(ids.shape, dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x, ids))
    assert torch.autograd.gradgradcheck(function, (x, ids))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    results = [f(x, ids) for f in (function, compiled)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result, x)[0] for result in results))


def test_half_precision_is_summed_in_single() -> None:
    ids = torch.arange(3).repeat_interleave(1365)[None]
    losses = torch.ones(ids.shape, dtype=torch.bfloat16)
    assert mg.aggregate(losses, "seq-mean-token-sum", ids).item() == 1368  # 1365, as bfloat16
    assert mg.aggregate(losses, "token-mean", ids).item() == 1


PACKED = torch.tensor([[0, 0, 0, 1, -1], [3, 1, 1, 1, 2], [0, -1, -1, -1, -1], [-1] * 5, [7, 7, 2, 2, 2]])


def accumulated(how: Any, batches: list[slice]) -> tuple[Tensor, Tensor]:
    """Loss and gradient of a parameter, of the rows in micro-batches; padding is NaN."""
    x = torch.randn(PACKED.shape, dtype=D, generator=torch.Generator().manual_seed(3))
    w = torch.nn.Parameter(torch.tensor(2.0, dtype=D))
    accumulator = mg.GradientAccumulator([w], mean=how, **HOW[how])
    for rows_of in batches:
        losses = torch.where(PACKED[rows_of] < 0, torch.nan, (w * x[rows_of]).square())
        accumulator.backward(losses, documents=PACKED[rows_of])
    loss = accumulator.finish()
    assert w.grad is not None
    return loss, w.grad


def on_a_rank(rank: int, size: int, how: Any) -> tuple[float, float]:
    del size
    loss, gradient = accumulated(how, [[slice(0, 1), slice(1, 3)], [slice(3, 5)]][rank])
    return loss.item(), gradient.item()


class Simulated(Alone):
    """One of several ranks, each in a thread of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, shared: dict[int, Any]) -> None:
        self.rank, self.size, self.barrier, self.shared = rank, barrier.parties, barrier, shared

    def gathered(self, own: Any, error: Exception | None = None) -> list[Any]:
        assert error is None
        self.shared[self.rank] = own
        self.barrier.wait(30)
        found = [self.shared[rank] for rank in range(self.size)]
        self.barrier.wait(30)
        return found

    def exchanged(self, params: Any, gradients: Any) -> list[Any]:
        del params
        return [sum(g for g in each if g is not None) for each in zip(*self.gathered(gradients), strict=True)]


@pytest.mark.parametrize("how", HOW)
def test_simulated_ranks_of_which_one_has_no_data(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, own, shared = threading.Barrier(3), threading.local(), dict[int, Any]()
    monkeypatch.setattr(accumulation, "found_ranks", lambda *_: Simulated(own.rank, barrier, shared))

    def program(rank: int) -> tuple[Tensor, Tensor]:
        own.rank = rank
        return accumulated(how, [[slice(0, 3)], [], [slice(3, 4), slice(4, 5)]][rank])

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(program, range(3)))
    monkeypatch.undo()
    loss, gradient = accumulated(how, [slice(0, 5)])
    assert [each[0].item() for each in found] == pytest.approx([loss.item()] * 3)
    assert [each[1].item() for each in found] == pytest.approx([gradient.item()] * 3)


@pytest.mark.ranks(keep=2)
@pytest.mark.parametrize("how", HOW)
def test_any_split_into_micro_batches_and_ranks_gives_the_same(how: Any) -> None:
    x = torch.randn(PACKED.shape, dtype=D, generator=torch.Generator().manual_seed(3))
    w = torch.tensor(2.0, dtype=D, requires_grad=True)
    parts = [(w * x[i][PACKED[i] == d]).square() for i in range(5) for d in range(8)]
    loss = expected(parts, how)
    (gradient,) = torch.autograd.grad(loss, w)
    for cuts in ([0, 5], [0, 1, 5], [0, 2, 3, 4, 5]):
        found = accumulated(how, [slice(*cut) for cut in itertools.pairwise(cuts)])
        torch.testing.assert_close(found, (loss.detach(), gradient))
    for one in run_on_ranks(on_a_rank, 2, how):
        assert one == pytest.approx((loss.item(), gradient.item()))


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


X, IDS = torch.ones(1, 4), torch.tensor([[0, 0, 1, 1]])
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "name": ((X, "mean", IDS), {}, "how must be one of 'token-mean', .* found 'mean'"),
    "unknown": ((X, "token-mean"), {}, "which entries of plain losses count is unknown"),
    "no constant": ((X, "seq-mean-token-sum-norm", IDS), {}, "constant belongs to .* it is missing"),
    "a constant": ((X, "token-mean", IDS), {"constant": 3.0}, "constant belongs to .* not for 'token-mean'"),
    "zero": ((X, "seq-mean-token-sum-norm", IDS), {"constant": 0}, "positive number, found 0"),
    "returns": ((X, "token-mean", torch.tensor([[0, 1, 0, 0]])), {}, "segment 0 returns at position 2 of row 0"),
    "shape": ((X, "token-mean", IDS[:, :2]), {}, r"found \(1, 2\)"),
    "jagged": ((mg.unpack_documents(X, IDS), "token-mean", IDS), {}, "have a sequence for each document already"),
    "integers": ((X.long(), "token-mean", IDS), {}, "floating-point numbers .* found torch.int64"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write(name: str) -> None:
    arguments, given, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        mg.aggregate(*arguments, **given)
    line = re.search(r"write (mg\.aggregate\(losses.*\))$", str(caught.value))
    assert line, caught.value
    losses = arguments[0] if name in ("returns", "integers") else mg.masked(X)
    names = {"mg": mg, "torch": torch, "losses": losses, "labels": IDS, "mask": IDS >= 0, "constant": 1}
    if name != "shape":  # which shape is right is unknown
        assert eval(line[1], {**names, "documents": [*arguments, IDS, IDS][2]}).isfinite()


def test_the_accumulator_refuses_ranks_with_other_constants() -> None:
    for how, constant, text in (("other", None, "mean must be"), ("token-mean", 3, "constant belongs to")):
        with pytest.raises(ValueError, match=rf"{text}.*write mg.GradientAccumulator\(model, mean="):
            mg.GradientAccumulator([torch.nn.Parameter(X)], mean=how, constant=constant)  # type: ignore[arg-type]
    results = run_on_ranks(with_constant, 2)
    assert all("the ranks disagree" in text and "constant=" in text for text in results)


def with_constant(rank: int, size: int) -> str:
    del size
    w = torch.nn.Parameter(torch.ones(()))
    accumulator = mg.GradientAccumulator([w], mean="seq-mean-token-sum-norm", constant=1.0 + rank)
    accumulator.backward(w * X, documents=IDS)
    try:
        accumulator.finish()
    except ValueError as error:
        return str(error)
    return ""
