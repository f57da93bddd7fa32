"""torch.func over functions that use MaskedTensors: the three laws hold under every transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on

MASK = on([1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1])
CLEAN = torch.tensor([[0.5, 1.0, 2.0, -1.0], [1.0, 2.0, 3.0, 4.0], [1.5, -0.5, 1.0, 0.25]]).double()
GARBAGE = torch.tensor([[0.0, nan, 0.0, 0.0], [inf, -inf, nan, 1e38], [0.0, 0.0, -inf, 0.0]]).double()
POISONED = torch.where(MASK, CLEAN, GARBAGE)

#: of (B, n) and a mask: (B,), plain
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda x, k: mg.masked(x, k).square().mean(-1).filled(0.0),
    "softmax": lambda x, k: (mg.masked(x, k).softmax(-1) * 3).square().sum(-1).filled(0.0),
    "norm": lambda x, k: torch.linalg.vector_norm(mg.masked(x, k).exp(), 2, -1).filled(0.0),
    "functional": lambda x, k: torch.where(k.any(-1), mg.functional.var(x, -1, correction=0, mask=k), 0.0),
}
#: the derivative that each transform gives, and of which order it is
TRANSFORMS: dict[str, tuple[Callable[..., Any], int]] = {
    "grad": (grad, 1),
    "jacrev": (jacrev, 1),
    "jacfwd": (jacfwd, 1),
    "forward over reverse": (hessian, 2),
    "reverse over reverse": (lambda f: jacrev(jacrev(f)), 2),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize(("by", "order"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_derivatives_of_each_sample_are_those_of_its_entries_alone(
    function: Any, by: Any, order: int
) -> None:
    """``vmap`` over another transform; the mask is batched too."""
    expected = torch.zeros(3, *(4,) * order, dtype=CLEAN.dtype)
    for row, mask, place in zip(CLEAN, MASK, expected, strict=True):
        if mask.any():
            at = (mask.nonzero()[:, 0],) * order
            alone = by(lambda v: function(v, torch.ones_like(v).bool()))(row[mask])
            place[torch.meshgrid(*at, indexing="ij")] = alone
    torch.testing.assert_close(vmap(by(function))(POISONED, MASK), expected)
    if order == 1:
        directions = torch.where(MASK, torch.randn(3, 4, dtype=CLEAN.dtype), nan)
        tangents = vmap(lambda x, k, u: jvp(lambda v: function(v, k), (x,), (u,))[1])
        found = tangents(POISONED, MASK, directions)
        torch.testing.assert_close(found, (expected * directions.nan_to_num()).sum(1))


def test_masked_arguments_of_vmap() -> None:
    x = mg.masked(POISONED, MASK)
    assert_entries(vmap(lambda v: v.mean())(x), [0.5, nan, 1.25 / 3])
    assert_entries(vmap(lambda v: v.sum(), in_dims=1, chunk_size=1)(x), [2.0, -0.5, 2.0, -0.75])
    given = vmap(lambda d, w: d["x"] * w, in_dims=({"x": None}, 0))({"x": x}, torch.ones(2, dtype=x.dtype))
    assert torch.equal(given.mask, MASK.expand(2, 3, 4))


@pytest.mark.parametrize("out_dims", [0, 1, -1])
def test_masked_results_of_vmap_may_share_a_mask_or_values(out_dims: int) -> None:
    x = mg.masked(POISONED, MASK)
    found = vmap(lambda w: x * w, out_dims=out_dims)(torch.arange(1.0, 6.0).double())
    expected = torch.stack([CLEAN * w for w in range(1, 6)], out_dims)
    assert torch.equal(found.mask, torch.stack([MASK] * 5, out_dims))
    torch.testing.assert_close(found.filled(0.0), torch.where(found.mask, expected, 0.0))
    shared = vmap(lambda k: mg.masked(POISONED[0], k), out_dims=out_dims)(MASK)
    assert torch.equal(shared.mask, torch.stack(list(MASK), out_dims))
    assert shared.shape == shared.mask.shape


def test_sparse_layouts_under_vmap() -> None:
    x = mg.masked(POISONED, MASK).to_sparse()
    sums = vmap(lambda w: (x * w).sum())(torch.arange(1.0, 4.0).double())
    torch.testing.assert_close(sums, torch.arange(1.0, 4.0).double() * CLEAN[MASK].sum())
    with pytest.raises(mg.UnsupportedOperationError, match=r"torch\.func\.vmap .*x\.to_dense\(\)"):
        vmap(lambda w: x * w)(torch.ones(3))


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
    with pytest.raises(RuntimeError, match=r"MaskedTensor|Tensor with dtype torch\.bool"):
        grad(lambda x: mg.masked(x, MASK).amax())(POISONED)  # nor has a masked result one gradient


@pytest.mark.parametrize(
    "transform", [vmap, lambda f: grad(lambda x, k: f(x, k).sum())], ids=["vmap", "grad"]
)
def test_compiled(transform: Any) -> None:
    function = transform(FUNCTIONS["mean"])
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for mask in (MASK, ~MASK & (CLEAN == POISONED), torch.zeros_like(MASK)):
        x = torch.where(mask, CLEAN, nan)
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
