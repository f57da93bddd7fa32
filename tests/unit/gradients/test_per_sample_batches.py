"""The shorter way into vmap gives what torch.vmap gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.gradients.per_sample_batches import for_each_sample
from tests.poison import nan


def both_ways(function: Any, *given: Any, randomness: str = "error") -> None:
    torch.manual_seed(0)
    found = for_each_sample(function, *given, randomness)
    torch.manual_seed(0)
    expected = torch.vmap(function, randomness=randomness)(*given)
    assert isinstance(found, tuple)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def given(size: int) -> tuple[dict[str, Tensor], Tensor, list[Any]]:
    x = torch.randn(size, 4)
    masked = mg.masked(torch.where(x > 0, x, nan), x > 0)
    return {"w": torch.randn(3, 4).expand(size, 3, 4)}, torch.arange(size), [x, masked]


@pytest.mark.parametrize("size", [1, 3])
def test_tensors_and_masked_tensors(size: int) -> None:
    def function(copies: dict[str, Tensor], number: Tensor, leaves: list[Any]) -> tuple[Tensor, ...]:
        x, masked = leaves
        return (copies["w"] @ x).sum() * number, masked.mean(), masked.mask.any()

    both_ways(function, *given(size))


def test_results_that_are_the_same_for_all() -> None:
    both_ways(lambda *_: (torch.ones(2), torch.tensor(3)), *given(3))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers(randomness: str) -> None:
    both_ways(lambda _, __, leaves: (torch.rand_like(leaves[0]),), *given(3), randomness=randomness)
    with pytest.raises(RuntimeError, match="random"):
        for_each_sample(lambda _, __, leaves: (torch.rand_like(leaves[0]),), *given(3), "error")


def test_an_error_leaves_no_transform_behind() -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        for_each_sample(fails, *given(2), "error")
    assert torch._C._functorch.maybe_current_level() is None
