"""torch.func over functions that use MaskedTensors: the three laws hold under every transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on

MASK = on([1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1])
CLEAN = torch.tensor([[0.5, 1.0, 2.0, -1.0], [1.0, 2.0, 3.0, 4.0], [1.5, -0.5, 1.0, 0.25]]).double()
GARBAGE = torch.tensor([[0.0, nan, 0.0, 0.0], [inf, -inf, nan, 1e38], [0.0, 0.0, -inf, 0.0]]).double()
POISONED = torch.where(MASK, CLEAN, GARBAGE)

#: of (B, n) and a mask: (B,), plain
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda x, k: mg.masked(x, k).mean(-1).filled(0.0),
    "logsumexp": lambda x, k: mg.masked(x, k).logsumexp(-1).filled(0.0),
    "softmax": lambda x, k: (mg.masked(x, k).softmax(-1) * 3).square().sum(-1).filled(0.0),
    "norm": lambda x, k: torch.linalg.vector_norm(mg.masked(x, k).exp(), 2, -1).filled(0.0),
    "std": lambda x, k: mg.masked(x, k).std(-1, correction=0).filled(0.0),
    "matmul": lambda x, k: (mg.masked(x, k).sin() @ torch.ones(4, 2, dtype=x.dtype)).sum(-1).filled(0.0),
    "loss": lambda x, k: F.smooth_l1_loss(mg.masked(x, k), torch.ones_like(x), reduction="none").sum(-1).filled(0.0),
    "functional": lambda x, k: torch.where(k.any(-1), mg.functional.var(x, -1, correction=0, mask=k), 0.0),
}  # fmt: skip
EACH = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def deleted(function: Callable[[Tensor, Tensor], Tensor], derivative: Callable[..., Any]) -> list[Any]:
    """What ``derivative`` gives for each row alone, of which only the specified entries exist."""
    rows = []
    for row, mask in zip(CLEAN, MASK, strict=True):
        if mask.any():
            kept = row[mask]
            rows.append(derivative(lambda v: function(v, torch.ones_like(v).bool()), kept))
        else:
            rows.append(None)
    return rows


def spread(rows: list[Any], dims: int) -> Tensor:
    """Derivatives of specified entries, put where they belong; zeros elsewhere."""
    found = torch.zeros(len(rows), *(4,) * dims, dtype=CLEAN.dtype)
    for place, (row, mask) in enumerate(zip(rows, MASK, strict=True)):
        if row is not None:
            at = mask.nonzero()[:, 0]
            found[place][torch.meshgrid(*(at,) * dims, indexing="ij")] = row
    return found


class TestDerivativesOfEachSample:
    """``vmap`` over another transform; the mask is batched too."""

    # a product of matrices has a shape of its own
    each = pytest.mark.parametrize(
        "function", [pytest.param(f, id=n) for n, f in FUNCTIONS.items() if n != "matmul"]
    )

    @each
    @pytest.mark.parametrize("by", [grad, jacrev, jacfwd], ids=lambda f: f.__name__)
    def test_first(self, function: Any, by: Any) -> None:
        expected = spread(deleted(function, lambda f, row: by(f)(row)), 1)
        torch.testing.assert_close(vmap(by(function))(POISONED, MASK), expected)

    @each
    @pytest.mark.parametrize(
        "by", [hessian, lambda f: jacrev(jacrev(f))], ids=["forward-over-reverse", "reverse-over-reverse"]
    )
    def test_second(self, function: Any, by: Any) -> None:
        expected = spread(deleted(function, lambda f, row: by(f)(row)), 2)
        torch.testing.assert_close(vmap(by(function))(POISONED, MASK), expected)

    @each
    def test_forward_mode(self, function: Any) -> None:
        directions = torch.where(MASK, torch.randn(3, 4, dtype=CLEAN.dtype), nan)

        def forward(x: Tensor, k: Tensor, u: Tensor) -> Tensor:
            return jvp(lambda v: function(v, k), (x,), (u,))[1]

        slopes = spread(deleted(function, lambda f, row: grad(f)(row)), 1)
        torch.testing.assert_close(
            vmap(forward)(POISONED, MASK, directions), (slopes * directions.nan_to_num()).sum(1)
        )


@EACH
def test_in_another_dimension_and_in_chunks(function: Any) -> None:
    found = vmap(function, in_dims=1, chunk_size=1)(POISONED.t(), MASK.t())
    torch.testing.assert_close(found, function(POISONED, MASK))


def test_masked_arguments_of_vmap() -> None:
    x = mg.masked(POISONED, MASK)
    assert_entries(vmap(lambda v: v.mean())(x), [0.5, nan, 1.25 / 3])
    assert_entries(vmap(lambda v: v.mean(), in_dims=(0,))(x), [0.5, nan, 1.25 / 3])
    assert_entries(vmap(lambda v: v.amax())(x), x.amax(1).tolist())
    by_column = vmap(lambda v: v.sum(), in_dims=1)(x)
    assert_entries(by_column, [2.0, -0.5, 2.0, -0.75])
    given = vmap(lambda d, w: d["x"] * w, in_dims=({"x": None}, 0))({"x": x}, torch.ones(2, dtype=x.dtype))
    assert torch.equal(given.mask, MASK.expand(2, 3, 4))


@pytest.mark.parametrize("out_dims", [0, 1, 2, -1])
def test_masked_results_of_vmap_whose_mask_is_shared(out_dims: int) -> None:
    x = mg.masked(POISONED, MASK)
    found = vmap(lambda w: x * w, out_dims=out_dims)(torch.arange(1.0, 6.0).double())
    expected = torch.stack([CLEAN * w for w in range(1, 6)], out_dims)
    assert torch.equal(found.mask, torch.stack([MASK] * 5, out_dims))
    torch.testing.assert_close(found.filled(0.0), torch.where(found.mask, expected, 0.0))


@pytest.mark.parametrize("out_dims", [0, 1, -1])
def test_masked_results_of_vmap_whose_values_are_shared(out_dims: int) -> None:
    found = vmap(lambda k: mg.masked(POISONED[0], k), out_dims=out_dims)(MASK)
    assert torch.equal(found.mask, torch.stack(list(MASK), out_dims))
    assert found.shape == torch.stack(list(MASK), out_dims).shape


def test_sparse_layouts_under_vmap() -> None:
    x = mg.masked(POISONED, MASK).to_sparse()
    sums = vmap(lambda w: (x * w).sum())(torch.arange(1.0, 4.0).double())
    torch.testing.assert_close(sums, torch.arange(1.0, 4.0).double() * CLEAN[MASK].sum())
    with pytest.raises(mg.UnsupportedOperationError, match=r"torch\.func\.vmap .*x\.to_dense\(\)"):
        vmap(lambda w: x * w)(torch.ones(3))


class TestTangents:
    """The tangent of a MaskedTensor has its pattern."""

    @staticmethod
    def squares(x: Tensor) -> mg.MaskedTensor:
        return mg.masked(x, MASK[0]) ** 2

    def test_jvp(self) -> None:
        u = torch.tensor([1.0, nan, 2.0, 3.0], dtype=torch.float64)
        result, tangent = jvp(self.squares, (POISONED[0],), (u,))
        assert_entries(result, [0.25, None, 4.0, 1.0])
        assert_entries(tangent, [1.0, None, 8.0, -6.0])


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: grad(f)(x),
        vjp,
        lambda f, x: jacrev(f)(x),
        lambda f, x: hessian(f)(x),
        lambda f, x: jvp(f, (x,), (x,)),
    ],
    ids=["grad", "vjp", "jacrev", "hessian", "jvp"],
)
def test_a_mask_is_nothing_to_differentiate_by(transform: Any) -> None:
    """Not silently zero: PyTorch finds a Boolean tensor among the arguments. The data is what to differentiate by."""
    with pytest.raises((RuntimeError, ValueError), match="floating point"):
        transform(lambda v: (v * v).sum(), mg.masked(POISONED, MASK))


@pytest.mark.parametrize("transform", [grad, jacrev], ids=lambda f: f.__name__)
def test_masked_results_of_reverse_mode_are_refused(transform: Any) -> None:
    with pytest.raises(RuntimeError, match=r"MaskedTensor|Tensor with dtype torch\.bool"):
        transform(lambda x: mg.masked(x, MASK).amax())(POISONED)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3, dtype=torch.float64), nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        """Rows (n, 4) without those masked out, (1,)."""
        rows = mg.masked(self.first(torch.where(k[:, None], x, 0.0)).tanh(), k[:, None])
        out: Tensor = self.last(rows.mean(0).filled(0.0))
        return out


class TestFunctionalCall:
    ROWS = on(1, 0, 1)

    def test_per_sample_gradients(self) -> None:
        model = Pooled()
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        loss = lambda p, x, k: functional_call(model, p, (x, k)).square().sum()  # noqa: E731
        x, masks = torch.randn(5, 3, 4, dtype=torch.float64), torch.rand(5, 3) < 0.6
        found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, masks)
        for i in range(5):
            alone = grad(loss)(parameters, x[i], masks[i])
            for name, slope in alone.items():
                torch.testing.assert_close(found[name][i], slope)


@pytest.mark.parametrize(
    "transform", [vmap, lambda f: grad(lambda x, k: f(x, k).sum())], ids=["vmap", "grad"]
)
def test_compiled(transform: Any) -> None:
    function = transform(FUNCTIONS["mean"])
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for mask in (MASK, ~MASK & (CLEAN == POISONED), torch.zeros_like(MASK)):
        x = torch.where(mask, CLEAN, nan)
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
