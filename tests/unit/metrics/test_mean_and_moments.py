"""Means, variances and deviations over batches, against numpy on the entries that are specified."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.ranks import run_on_ranks

NAN = float("nan")
GARBAGE = torch.tensor([NAN, float("inf"), float("-inf"), 1e38])


def batches(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Values with garbage under their masks; the third column of the second batch, and the last batch, are empty."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for rows in (4, 3, 0, 5, 2):
        x = torch.randn(rows, 3, generator=draw) * 2 + 1
        mask = torch.rand(rows, 3, generator=draw) < 0.6
        if rows == 3:
            mask[:, 2] = False
        if rows == 2:
            mask[:] = False
        found.append((torch.where(mask, x, GARBAGE[torch.randint(0, 4, x.shape, generator=draw)]), mask))
    return found


def columns(seed: int = 0) -> list[Any]:
    """The specified entries of each column, deleted by hand."""
    x, mask = (torch.cat(parts) for parts in zip(*batches(seed), strict=True))
    return [x[:, c][mask[:, c]].numpy().astype(np.float64) for c in range(3)]


def in_layout(x: Tensor, mask: Tensor, layout: torch.layout) -> Any:
    return mg.masked(x, mask) if layout is torch.strided else mg.masked(x, mask).to_sparse(layout=layout)


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr], ids=str)
def test_moments_of_columns(layout: torch.layout) -> None:
    moments, everything = mg.metrics.Moments(dim=0), mg.metrics.Moments((0, 1), keepdim=True)
    for x, mask in batches():
        moments.update(in_layout(x, mask, layout))
        everything.update(x[mask].view(1, -1).double())
    entries = np.concatenate(columns())
    assert everything.var().shape == (1, 1)
    assert everything.var().item() == pytest.approx(entries.var(ddof=1), rel=1e-12)
    assert moments.count().tolist() == [len(c) for c in columns()]
    for found, wanted in (
        (moments.mean(), [c.mean() for c in columns()]),
        (moments.var(), [c.var(ddof=1) for c in columns()]),
        (moments.var(correction=0), [c.var() for c in columns()]),
        (moments.std(), [c.std(ddof=1) for c in columns()]),
    ):
        assert isinstance(found, mg.MaskedTensor)
        assert found.mask.all()
        assert found.dtype is torch.float32
        torch.testing.assert_close(found.filled(NAN), torch.tensor(np.array(wanted)).float())


def test_too_few_entries() -> None:
    moments = mg.metrics.Moments(dim=0)
    x = torch.tensor([[1.0, 2.0, NAN]])
    moments.update(mg.masked(x, torch.tensor([[True, True, False]])))
    moments.update(mg.masked(x + 2, torch.tensor([[True, False, False]])))
    assert moments.mean().tolist() == [2.0, 2.0, None]
    assert moments.var().tolist() == [2.0, None, None]
    assert moments.std().tolist() == [pytest.approx(math.sqrt(2.0)), None, None]
    plain = mg.metrics.Moments(dim=0)
    plain.update(torch.tensor([[1.0], [NAN]])[:1])
    assert plain.mean().tolist() == [1.0]
    assert plain.var().isnan().all()
    plain.update(torch.tensor([[NAN]]))  # an entry, not a missing one
    assert plain.mean().isnan().all()


def test_refusals() -> None:
    moments = mg.metrics.Moments(dim=0)
    with pytest.raises(RuntimeError, match=r"without update\(\)"):
        moments.mean()
    with pytest.raises(TypeError, match="found list"):
        moments.update([1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"found torch\.complex64"):
        moments.update(torch.ones(2, dtype=torch.complex64))
    moments.update(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"x of shape \(2, 4\) gives moments of shape \(4,\).*gave \(3,\)"):
        moments.update(torch.ones(2, 4))
    with pytest.raises(
        ValueError, match=r"saved with dim=0, but this has 1; use mg\.metrics\.Moments\(dim=0"
    ):
        mg.metrics.Moments(dim=1).load_state_dict(moments.state_dict())
    mean = mg.metrics.Mean()
    for value, count, words in (
        (torch.ones(()), None, "value is a reduced loss"),
        (torch.ones(2), None, "count= or mask="),
        (1.0, -1, "at least 0, found -1"),
        (1.0, NAN, "finite number, found nan"),
        (1.0, "two", "found str"),
        ("1", 1, "of type str"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            mean.update(value, count)  # type: ignore[arg-type]
    assert mean.compute().isnan()


def saved(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_states_are_saved_and_reset() -> None:
    whole, mean = mg.metrics.Moments(dim=0), mg.metrics.Mean()
    half, half_mean = mg.metrics.Moments(dim=0), mg.metrics.Mean()
    half.load_state_dict(saved(half.state_dict()))  # of nothing
    for number, (x, mask) in enumerate(batches()):
        if number == 2:
            states = saved(half.state_dict()), saved(half_mean.state_dict())
            half, half_mean = mg.metrics.Moments(dim=0), mg.metrics.Mean()
            half.load_state_dict(states[0])
            half_mean.load_state_dict(states[1])
        for moments in (whole, half):
            moments.update(mg.masked(x, mask))
        for one in (mean, half_mean):
            one.update(mg.masked(x, mask))
    assert torch.equal(whole.var().filled(0), half.var().filled(0))
    assert torch.equal(mean.compute(), half_mean.compute())
    whole.reset()
    mean.reset()
    assert mean.compute().isnan()
    with pytest.raises(RuntimeError):
        whole.count()


def test_the_mean_counts_entries() -> None:
    mean, moments = mg.metrics.Mean(), mg.metrics.Moments()
    for x, mask in batches():
        mean.update(mg.masked(x, mask).requires_grad_())
        moments.update(mg.masked(x, mask))
    entries = np.concatenate(columns())
    assert not mean.compute().requires_grad
    for found in (mean.compute(), moments.mean()):
        assert isinstance(found, Tensor)
        assert found.item() == pytest.approx(entries.mean(), rel=1e-6)
    mean.update(10.0, count=2.5)
    mean.update(torch.tensor([1.0, 2.0]), count=torch.tensor(3))
    mean.update(NAN, count=0)
    wanted = (entries.sum() + 25 + 3) / (len(entries) + 5.5)
    assert mean.compute().item() == pytest.approx(wanted, rel=1e-6)


def _on_ranks(rank: int, world_size: int) -> Any:
    moments, mean, nothing = mg.metrics.Moments(dim=0), mg.metrics.Mean(), mg.metrics.Moments(dim=0)
    for number, (x, mask) in enumerate(batches()):
        if rank < 2 and number % 2 == rank:
            moments.update(mg.masked(x, mask))
            mean.update(mg.masked(x, mask))
    try:
        nothing.mean()
    except RuntimeError as error:
        said = str(error)
    own = moments.state_dict().get("number")
    return moments.mean(), moments.var(), moments.count(), mean.compute(), said, own


def test_ranks() -> None:
    """The third rank has nothing; what a rank has is not changed by what it computes."""
    wanted = columns()
    answers = run_on_ranks(_on_ranks, 3)
    for mean, var, count, total, said, _ in answers:
        torch.testing.assert_close(mean.filled(NAN), torch.tensor([c.mean() for c in wanted]).float())
        torch.testing.assert_close(var.filled(NAN), torch.tensor([c.var(ddof=1) for c in wanted]).float())
        assert count.tolist() == [len(c) for c in wanted]
        assert total.item() == pytest.approx(np.concatenate(wanted).mean(), rel=1e-6)
        assert "without update()" in said
    assert answers[2][-1] is None
    assert (answers[0][-1] + answers[1][-1]).tolist() == [len(c) for c in wanted]
