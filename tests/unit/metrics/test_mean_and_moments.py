"""Means, variances and deviations over batches and ranks, against PyTorch on the entries that are specified."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.ranks import run_on_ranks

NAN = float("nan")


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """The third column of the second batch, and the last batch, are empty."""
    draw = torch.Generator().manual_seed(0)
    for rows in (4, 3, 0, 5, 2):
        mask = (torch.rand(rows, 3, generator=draw) < 0.6) & (rows != 2)
        mask[:, 2] &= rows != 3
        yield torch.where(mask, torch.randn(rows, 3, generator=draw) * 2 + 1, NAN), mask


def computed(rank: int, world_size: int, layout: torch.layout = torch.strided) -> Any:
    """On a rank: every other batch. The third has nothing."""
    moments, mean = mg.metrics.Moments(dim=0), mg.metrics.Mean()
    for number, (data, mask) in enumerate(batches()):
        if world_size == 1 or number % 2 == rank:
            x = mg.masked(data, mask)
            x = x if layout is torch.strided else x.to_sparse(layout=layout)
            moments.update(x)
            mean.update(x.detach().requires_grad_())
    with pytest.raises(RuntimeError, match=r"without update\(\)"):
        mg.metrics.Moments().mean()
    found = [moments.mean(), moments.var(), moments.var(correction=0), moments.std(), moments.count()]
    assert world_size == 1 or (rank == 2) == ("number" not in moments.state_dict())
    return [*found, mean.compute()]


def assert_right(found: list[Any]) -> None:
    """The specified entries of each column, deleted by hand."""
    x, mask = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    columns = [x[:, c][mask[:, c]].double() for c in range(3)]
    for result, function in zip(
        found, (torch.mean, torch.var, partial(torch.var, correction=0), torch.std), strict=False
    ):
        assert result.mask.all()
        torch.testing.assert_close(result.filled(NAN), torch.stack([function(c) for c in columns]).float())
    assert found[4].tolist() == [len(c) for c in columns]
    torch.testing.assert_close(found[5], torch.cat(columns).mean().float(), check_dtype=False)
    assert not found[5].requires_grad


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr], ids=str)
def test_moments_of_columns_and_the_mean_of_all(layout: torch.layout) -> None:
    assert_right(computed(0, 1, layout))


def test_ranks() -> None:
    for found in run_on_ranks(computed, 3):
        assert_right(found)


def test_means_of_numbers_that_count_and_moments_of_several_dimensions() -> None:
    mean, moments = mg.metrics.Mean(), mg.metrics.Moments((0, 1), keepdim=True)
    mean.update(10.0, count=2.5)
    mean.update(torch.tensor([1.0, 2.0]), count=torch.tensor(3))
    mean.update(NAN, count=0)
    assert mean.compute().item() == pytest.approx((25 + 3) / 5.5, rel=1e-6)
    for x in (torch.tensor([[1.0, 2.0]]), torch.tensor([[6.0]])):
        moments.update(x)
    assert moments.var().tolist() == [[7.0]]


def test_too_few_entries() -> None:
    moments = mg.metrics.Moments(dim=0)
    x = torch.tensor([[1.0, 2.0, NAN]])
    moments.update(mg.masked(x, torch.tensor([[True, True, False]])))
    moments.update(mg.masked(x + 2, torch.tensor([[True, False, False]])))
    assert moments.mean().tolist() == [2.0, 2.0, None]
    assert moments.var().tolist() == [2.0, None, None]
    assert moments.std().tolist() == [pytest.approx(math.sqrt(2.0)), None, None]
    plain = mg.metrics.Moments(dim=0)
    plain.update(torch.tensor([[1.0]]))
    assert plain.mean().tolist() == [1.0]
    assert plain.var().isnan().all()
    plain.update(torch.tensor([[NAN]]))  # an entry, not a missing one
    assert plain.mean().isnan().all()


def test_refusals() -> None:
    moments, other, mean = mg.metrics.Moments(dim=0), mg.metrics.Moments(dim=1), mg.metrics.Mean()
    with pytest.raises(RuntimeError, match=r"without update\(\)"):
        moments.mean()
    moments.update(torch.ones(2, 3))
    calls: list[tuple[Any, tuple[Any, ...], str]] = [
        (moments.update, ([1.0],), "found list"),
        (moments.update, (torch.ones(2, dtype=torch.complex64),), r"found torch\.complex64"),
        (moments.update, (torch.ones(2, 4),), r"x of shape \(2, 4\) gives .* shape \(4,\).*gave \(3,\)"),
        (other.load_state_dict, (moments.state_dict(),), r"with dim=0, but this has 1; use .*Moments\(dim=0"),
        (mean.update, (torch.ones(()),), "value is a reduced loss"),
        (mean.update, (torch.ones(2),), "count= or mask="),
        (mean.update, (1.0, -1), "at least 0, found -1"),
        (mean.update, (1.0, NAN), "finite number, found nan"),
        (mean.update, (1.0, "two"), "found str"),
        (mean.update, ("1", 1), "of type str"),
    ]
    for call, given, words in calls:
        with pytest.raises((TypeError, ValueError), match=words):
            call(*given)
    assert mean.compute().isnan()


def contents(metric: Any) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in metric.state_dict().items()}


def test_states_are_saved_and_reset() -> None:
    for made in (lambda: mg.metrics.Moments(dim=0), mg.metrics.Mean):
        whole, part = made(), made()
        for x, mask in batches():
            torch.save(part.state_dict(), buffer := io.BytesIO())  # the first is of nothing
            part = made()
            buffer.seek(0)
            part.load_state_dict(torch.load(buffer, weights_only=True))
            for one in (whole, part):
                one.update(mg.masked(x, mask))
        assert contents(part) == contents(whole)
        whole.reset()
        assert contents(whole) == contents(made())
