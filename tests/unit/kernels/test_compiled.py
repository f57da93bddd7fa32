"""Formulas compiled by PyTorch, as large tensors on a GPU run them: values, gradients and second derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import KERNELS, compiled, explain, use_kernels
from tests.poison import inf, nan

pytestmark = pytest.mark.nondeterministic  # otherwise nothing is compiled

SHAPE = (7, 5)

#: Lines of users, of a MaskedTensor and another tensor of its shape.
LINES: dict[str, Any] = {
    "sum": lambda x, y: x.sum(1),
    "mean": lambda x, y: x.mean(0),
    "mean of everything": lambda x, y: x.mean(),
    "var": lambda x, y: x.var(1, correction=0),
    "norm": lambda x, y: x.norm(dim=1),
    "amax": lambda x, y: x.amax((0, 1)),
    "logsumexp": lambda x, y: x.logsumexp(1),
    "mse_loss": F.mse_loss,
    "layer_norm": lambda x, y: F.layer_norm(x, SHAPE[1:], y[0], y[1]),
    "batch_norm": lambda x, y: F.batch_norm(x, None, None, training=True),
}


@pytest.fixture(autouse=True)
def _no_failure() -> Iterator[None]:
    """A formula that could not be compiled would be compared with itself."""
    compiled.failures.clear()
    yield
    assert not compiled.failures


def _found(line: Any, values: Tensor, mask: Tensor, other: Tensor) -> list[Tensor]:
    """The result of a line, gradients of both operands, and a second derivative."""
    leaves = [values.clone().requires_grad_(), other.clone().requires_grad_()]
    result = line(mg.masked(leaves[0], mask), leaves[1])
    result = result.filled(0.0) if isinstance(result, mg.MaskedTensor) else result
    weight = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64).view(result.shape)
    grads = torch.autograd.grad(
        (result * weight).sum(), leaves, create_graph=True, allow_unused=True, materialize_grads=True
    )
    total = torch.stack([grad.sin().sum() for grad in grads]).sum()
    second: tuple[Tensor, ...] = ()
    if total.requires_grad:
        second = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [result, *grads, *second]


@pytest.mark.parametrize("name", list(LINES))
def test_a_line_is_as_its_formula_is(name: str) -> None:
    """The first row is complete, so is the first column, the last but one is masked."""
    mask, other = torch.rand(SHAPE) < 0.6, torch.randn(SHAPE, dtype=torch.float64)
    mask[0], mask[:, 0], mask[-2] = True, True, False
    for garbage in (nan, inf, 1e38):
        values = torch.where(mask, other.flip(0), garbage)
        with use_kernels("reference"):
            expected = _found(LINES[name], values, mask, other)
        before = counters["stats"]["unique_graphs"]
        with use_kernels("compiled"):
            found = _found(LINES[name], values, mask, other)
        assert garbage is not nan or counters["stats"]["unique_graphs"] > before  # it was compiled
        for one, wanted in zip(found, expected, strict=False):
            torch.testing.assert_close(one, wanted)
        assert (found[1][~mask] == 0).all()


def test_all_sizes_share_a_function_and_constants_have_their_own() -> None:
    with use_kernels("compiled"):
        before = counters["stats"]["unique_graphs"]
        for shape in ((6, 5), (90, 7), (20, 300), (3, 4)):
            KERNELS["masked_extremum"](torch.randn(shape), torch.rand(shape) < 0.5, (1,), False, True)
        assert counters["stats"]["unique_graphs"] == before + 1
        x, mask = torch.randn(6, 5), torch.rand(6, 5) < 0.5
        # more than PyTorch compiles of one function; and numbers that are equal are told apart
        for filler in (*range(3, 14), 0.0, -0.0, 0, -0.0, 0.0, nan, float("nan"), inf, -inf):
            found, wanted = kernels.masked_filling(x, mask, filler), torch.where(mask, x, filler)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(found.signbit()[~mask], wanted.signbit()[~mask])
        assert counters["stats"]["unique_graphs"] <= before + 1 + 11 + 6


def test_where_nothing_is_compiled() -> None:
    x, mask = torch.randn(6, 5), torch.rand(6, 5) < 0.5
    with use_kernels("compiled"):
        assert explain("masked_sum", x, mask) == ""
        assert "not compiled by PyTorch" in explain("segment_prod", x, mask)
        assert "no compiled kernel for torch.complex64" in explain("masked_sum", x + 0j, mask)
        torch.use_deterministic_algorithms(True)
        try:
            assert "torch.use_deterministic_algorithms(True) is set" in explain("masked_sum", x, mask)
        finally:
            torch.use_deterministic_algorithms(False)
        seen: list[str] = []
        torch.vmap(lambda v: seen.append(explain("masked_sum", v, mask[0])) or v)(x)
        assert "transform" in seen[0]
        leaf = x.clone().requires_grad_()
        total, _ = kernels.masked_sum(leaf * leaf, mask, (1,), False)
        (stacked,) = torch.autograd.grad(total, leaf, torch.eye(6), is_grads_batched=True)
        torch.testing.assert_close(stacked, torch.where(mask, 2 * x, 0) * torch.eye(6)[..., None])
        with pytest.raises(IndexError, match="Dimension out of range"):  # the formula's to report
            KERNELS["masked_logsumexp"](x, mask, (4,), False)


def test_what_cannot_be_compiled_runs_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler here\nat all")

    compiled._made.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    x, mask = torch.randn(6, 5), torch.rand(6, 5) < 0.5
    with use_kernels("compiled"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(
                kernels.masked_sum(x, mask, (1,), False)[0], torch.where(mask, x, 0).sum(1)
            )
            kernels.masked_mean(x, mask, (1,), False)
        assert "RuntimeError: no compiler here" in explain("masked_sum", x, mask)
    assert len(seen) == 1
    assert "the slow reference of masked_sum" in str(seen[0].message)
    compiled._made.cache_clear()
    compiled.failures.clear()
