"""Sequences of different lengths, wherever they are: conversions, autograd and writes agree with the Boolean mask.

Copies, files, reading and transforms: tests/unit/patterns/suite, with all layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from tests.laws.evaluation import plain_parts
from tests.laws.jagged import jagged, mask_of_lengths

#: Batches by name: the lengths, the shape, and where batch and ragged dimension stand in it.
BATCHES: dict[str, tuple[list[Any], tuple[int, ...], tuple[int, ...]]] = {
    "sequences": ([3, 6, 0, 2], (4, 6), (0, 1)),
    "features": ([2, 4, 1], (3, 4, 2), (0, 1)),
    "several batch dimensions": ([[1, 4, 0], [3, 2, 2]], (2, 3, 4), (0, 1, 2)),
    "nothing": ([0, 0], (2, 3), (0, 1)),
    "no sequences": ([], (0, 3), (0, 1)),
    "no positions": ([0, 0, 0], (3, 0), (0, 1)),
    "heads": ([3, 1], (2, 2, 4, 3), (0, 2)),
    "turned": ([2, 3, 0, 1], (3, 4, 2), (1, 0)),
    "ragged last": ([2, 0, 4], (3, 2, 4), (0, 2)),
    "features first": ([3, 1, 4], (2, 3, 4), (1, 2)),
    "flat": ([2, 0, 3], (3, 4, 2), (0, 1)),
}


def both(name: str) -> tuple[mg.MaskedTensor, mg.MaskedTensor]:
    """The same entries as rows, and with a Boolean mask."""
    lengths, shape, at = BATCHES[name]
    mask = mask_of_lengths(torch.tensor(lengths, dtype=torch.int64), shape, at)
    data = torch.where(mask, torch.rand(shape, dtype=torch.float64) * 4 - 2, torch.nan)
    x, plain = jagged(data, mask, at), mg.masked(data, mask)
    return (x.flatten(0, 1), plain.flatten(0, 1)) if name == "flat" else (x, plain)


def numbers(x: Any) -> Tensor:
    return torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape)


def in_part(x: Any) -> mg.MaskedTensor:
    return mg.masked(numbers(x), numbers(x) % 3 > 0)


def sent_back(gradient: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: mg.MaskedTensor) -> Any:
        x = x.detach().requires_grad_()
        (x * x).backward(gradient(x))
        return x.grad

    return run


def hooked(x: mg.MaskedTensor) -> Any:
    x = x.detach().requires_grad_()
    seen = []
    x.register_hook(lambda grad: seen.append(grad.layout))
    x.register_hook(lambda grad: grad * 2)
    (x * x).sum().backward()
    assert seen == [x.layout]
    return x.grad


def written(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: mg.MaskedTensor) -> Any:
        x = x.detach().clone()
        assert change(x) is x
        return x

    return run


SITUATIONS: dict[str, Callable[[Any], Any]] = {
    "to COO": lambda x: x.to_sparse(sparse_dim=x.ndim), "to a mask": lambda x: x.to_dense(),
    "backward dense": sent_back(numbers), "backward masked": sent_back(in_part),
    "backward coo": sent_back(lambda x: in_part(x).to_sparse()), "backward own": sent_back(lambda x: x.detach()),
    "hook": hooked,
    "add_": written(lambda x: x.add_(numbers(x))),
    "copy_": written(lambda x: x.copy_(x * 3)),
    "transpose_": written(lambda x: x.transpose_(0, 1)), "unsqueeze_": written(lambda x: x.unsqueeze_(0)),
}  # fmt: skip


@pytest.mark.layouts(per=lambda name: name, keep=2)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SITUATIONS)
def test_situations_agree_with_the_boolean_mask(name: str, batch: str) -> None:
    x, plain = both(batch)
    if name == "transpose_" and x.ndim < 2:
        return
    ours, theirs = SITUATIONS[name](x), SITUATIONS[name](plain)
    if isinstance(theirs, mg.MaskedTensor):
        assert torch.equal(ours.mask, theirs.mask)
        assert (ours.layout == torch.jagged) == (not name.startswith("to "))
    if name == "to COO" and BATCHES[batch][2] == (0, 1) and x.ndim > 1 and x.numel():
        ours = ours.to_jagged()
        assert ours.layout == torch.jagged
    torch.testing.assert_close(plain_parts(ours), plain_parts(theirs), rtol=0, atol=1e-15)


def test_a_write_that_would_need_other_rows_is_refused() -> None:
    x = mg.from_lengths(torch.rand(2, 3), torch.tensor([1, 3]), layout=torch.jagged)
    before = x.clone()
    for write in (lambda: x.__setitem__((slice(None), 2), 1.0), lambda: x.fill_(1.0)):
        with pytest.raises(UnsupportedLayoutError, match=r"to_dense\(\)"):
            write()
    assert torch.equal(x, before)
    x.requires_grad_()
    with torch.no_grad():
        x.mul_(2)
        with pytest.raises(RuntimeError, match="would replace a leaf"):
            x.add_(mg.from_lengths(torch.rand(2, 3), torch.tensor([1, 2]), layout=torch.jagged))


def test_beside_a_mask_a_jagged_operand_is_a_list_of_coordinates() -> None:
    x, plain = both("ragged last")
    found, expected = x * in_part(plain), plain * in_part(plain)
    assert found.layout == torch.strided
    torch.testing.assert_close((found.mask, found.filled(0)), (expected.mask, expected.filled(0)))
    with pytest.raises(UnsupportedLayoutError, match=r"x\.to_dense\(\)"):
        x.mul(in_part(plain).to_sparse())


@pytest.mark.every
@pytest.mark.parametrize("combine", [torch.add, torch.mul, torch.maximum, torch.max])
def test_the_same_sequences_at_other_places_are_another_pattern(combine: Callable[..., Any]) -> None:
    lengths, entries = torch.tensor([2, 0, 3]), torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    x, plain = (mg.from_lengths(entries, lengths, layout=layout) for layout in (torch.jagged, torch.strided))
    found, expected = combine(x, x.T), combine(plain, plain.T)
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0), expected.filled(0))
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), entries)[0] for y in (found, expected)))
    assert torch.equal(x, x.T) is torch.equal(plain, plain.T) is False


REDUCED = ("sum", "mean", "prod", "any", "logsumexp", "var", "std", "var_mean", "std_mean", "count_nonzero")
#: Of the features, of which there may be too few.
OF_FEATURES: dict[str, Callable[[Any], Any]] = {
    **{name: lambda x, name=name: getattr(torch, name)(x, dim=-1) for name in REDUCED},
    **{
        f"{name} of two": lambda x, name=name: getattr(torch, name)(x, dim=-1, correction=2)
        for name in REDUCED[5:9]
    },
    "biased std": lambda x: torch.std(x, dim=-1, unbiased=False),
    "matmul": lambda x: x @ torch.ones(x.shape[-1], 2, dtype=x.dtype),
    "linear": lambda x: torch.nn.functional.linear(x, torch.ones(2, x.shape[-1], dtype=x.dtype)),
    "cosine_similarity": lambda x: torch.nn.functional.cosine_similarity(x, x, dim=-1),
    "pairwise_distance": lambda x: torch.nn.functional.pairwise_distance(x, x),
}


@pytest.mark.every
@pytest.mark.parametrize("name", OF_FEATURES)
def test_too_few_features_are_unspecified_as_on_a_mask(name: str) -> None:
    for size in (0, 1, 2):
        data, lengths = torch.rand(3, 4, size, dtype=torch.float64), torch.tensor([2, 0, 3])
        x = mg.from_lengths(data, lengths, layout=torch.jagged)
        results = [OF_FEATURES[name](t) for t in (x, x.to_dense())]
        for found, expected in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
            assert torch.equal(found.mask, expected.mask), size
            torch.testing.assert_close(found.filled(0), expected.filled(0))


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "aminmax"])
def test_of_no_features_there_is_no_extremum_on_a_mask_or_in_rows(name: str) -> None:
    x = mg.from_lengths(torch.rand(3, 4, 0), torch.tensor([2, 0, 3]), layout=torch.jagged)
    for t in (x, x.to_dense()):
        with pytest.raises(IndexError, match="Expected reduction dim 2 to have non-zero size"):
            getattr(t, name)()
