"""Masks as arguments: every mask from outside passes one check."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.patterns.mask_arguments import check_mask
from tests.poison import assert_entries, inf, nan, on

CPU = torch.device("cpu")


@pytest.mark.parametrize("mask", [on([1, 0]), on([1], [0], [1]), on(1), torch.tensor(True)])
def test_a_mask_that_repeats_is_expanded_not_copied(mask: torch.Tensor) -> None:
    wide = check_mask(mask, torch.Size([3, 2]), CPU)
    assert wide.shape == (3, 2)
    assert wide.data_ptr() == mask.data_ptr()
    assert check_mask(mask, mask.shape, CPU) is mask


@pytest.mark.parametrize(
    ("mask", "kind", "words"),
    [
        ([True], TypeError, "Boolean torch.Tensor, .*found list"),
        (torch.ones(2), TypeError, "found torch.float32; use mask != 0, or mask == 0 for an additive mask"),
        (
            torch.tensor([1, 7]),
            ValueError,
            "integers 0 and 1 .*found the entry 7; use mask != 0, or mg.from_lengths",
        ),
        (torch.tensor([-1, 0], dtype=torch.int8), ValueError, "found the entry -1"),
        (on(1, 0, 1), ValueError, r"found a mask of shape \(3,\) for data of shape \(2,\)$"),
        (on(1, 0).to("meta"), ValueError, "device of the data, cpu, found meta"),
        (on(1, 0).to_sparse(), TypeError, "strided"),
    ],
)
def test_refusals_say_what_was_expected_and_found(mask: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        check_mask(mask, torch.Size([2]), CPU)


@pytest.mark.every
@pytest.mark.parametrize(
    ("sizes", "shape", "ways"),
    [
        ((3,), (3, 3), ["None", ":, None"]),  # rows or columns: only the user knows
        ((2, 3), (2, 3, 4), [":, :, None"]),
        ((2, 1), (2, 3, 4), [":, None"]),  # it ends in size 1, and does not broadcast
        ((3,), (3, 3, 3), ["None, None", "None, :, None", ":, None, None"]),
        ((0,), (0, 3), [":, None"]),
        ((1, 3), (2, 2, 3), ["None"]),
        ((1,), (), []),
    ],
)
def test_a_mask_with_fewer_dimensions_is_refused_with_the_spellings_that_fit(
    sizes: tuple[int, ...], shape: tuple[int, ...], ways: list[str]
) -> None:
    mask = torch.ones(sizes, dtype=torch.bool)
    with pytest.raises(ValueError, match="as many dimensions as the data") as caught:
        check_mask(mask, torch.Size(shape), CPU)
    found = re.findall(r"mask\[(.*?)\]", str(caught.value))
    assert found == ways
    for way in found:
        index = tuple(None if part == "None" else slice(None) for part in way.split(", "))
        assert check_mask(mask[index], torch.Size(shape), CPU).shape == shape


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int16, torch.uint32])
def test_integers_zero_and_one_are_a_mask(dtype: torch.dtype) -> None:
    numbers = torch.tensor([[1], [0], [1]]).to(dtype)
    mask = check_mask(numbers.expand(3, 2), torch.Size([3, 2]), CPU)
    assert mask.tolist() == [[True, True], [False, False], [True, True]]
    assert mask.stride() == (1, 0)
    assert check_mask(numbers[:0], torch.Size([0, 2]), CPU).dtype is torch.bool
    with pytest.raises(ValueError, match=r"found the entry 2; use mask != 0$"):
        check_mask(torch.tensor([[1], [2], [0]]).to(dtype), mask.shape, CPU)
    x = mg.masked(torch.ones(3, 2), numbers.expand(3, 2))
    x[0] = mg.unspecified
    assert numbers.flatten().tolist() == [1, 0, 1]  # which are not written to


def test_outside_of_eager_mode_entries_are_not_read() -> None:
    def mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return mg.masked(x, mask).sum(1).filled(0.0)

    x, mask = torch.tensor([[1.0, torch.nan], [3.0, 4.0]]), torch.tensor([[1, 0], [0, 7]])
    compiled = torch.compile(mean, backend="aot_eager", fullgraph=True)
    assert compiled(x, mask).tolist() == [1.0, 4.0]
    assert torch.vmap(lambda row, bits: mg.masked(row, bits).sum())(x, mask).tolist() == [1.0, 4.0]
    assert mg.masked(torch.ones(2, 2, device="meta"), mask.to("meta")).mask.dtype is torch.bool


def test_a_mask_may_be_masked_integers_with_garbage_under_their_mask() -> None:
    data = mg.masked(torch.tensor([1.0, 2.0, nan]), on(1, 1, 0))
    mask = mg.masked(torch.tensor([1, 0, 7]), on(1, 1, 0))
    assert_entries(mg.masked(data, mask), [1.0, None, None])
    assert_entries(mg.masked(torch.ones(3), mask.filled(0)), [1.0, None, None])
    with pytest.raises(ValueError, match="found the entry 7"):
        mg.masked(data, mg.masked(torch.tensor([7, 0, 1]), on(1, 1, 0)))


P = torch.nn.Parameter(torch.arange(9.0).view(3, 3))
X = mg.masked(torch.ones(3, 3), torch.eye(3) > 0)


def passed(x: Any, mask: torch.Tensor) -> torch.Tensor:
    """The gradient that ``mask_gradient`` passes, from a loss of all entries."""
    leaf = x.detach().requires_grad_()
    mg.mask_gradient(leaf, mask).sum().backward()
    return leaf.grad


def accumulated(mask: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a mean over the entries under ``mask``, of two named losses."""
    weight = torch.nn.Parameter(P.detach().clone())
    accumulator = mg.GradientAccumulator(weight)
    accumulator.backward({"a": weight * weight, "b": weight}, mask={"a": mask, "b": mask})
    accumulator.finish()
    return weight.grad


def trained(mask: torch.Tensor) -> torch.Tensor | None:
    """The entries that ``train_only`` leaves to optimizers."""
    mg.train_only(P, mask)
    found = mg.optim.trained_entries(P)
    mg.train_only(P, None)
    return found


ORDER = {"norm": (2.0, 1), "normalize": (2.0, 1), "quantile": (0.5, 1)}


def functional(name: str) -> Callable[[torch.Tensor], Any]:
    """A masked function along a dimension of ``P``."""
    return lambda mask: getattr(mg.functional, name)(P, *ORDER.get(name, (1,)), mask=mask)


#: Public functions with a mask among their arguments, and what it changes.
TAKERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "masked, of a MaskedTensor": lambda mask: mg.masked(X, mask).mask,
    "masked, sparse": lambda mask: mg.masked(X.to_sparse(), mask).mask,
    "train_only": trained,
    "mask_gradient": lambda mask: passed(P, mask),
    "mask_gradient, sparse": lambda mask: passed(X.to_sparse(), mask).filled(0.0),
    "backward": accumulated,
    "logaddexp": lambda mask: mg.functional.logaddexp(P, P, input_mask=mask),
    "logaddexp, of the other": lambda mask: mg.functional.logaddexp(P, P, other_mask=mask),
    **{
        name: functional(name)
        for name in mg.functional.__all__
        if "mask" in signature(getattr(mg.functional, name)).parameters
    },
}


@pytest.mark.every
@pytest.mark.parametrize("name", TAKERS)
def test_every_mask_that_is_an_argument_passes_the_check(name: str) -> None:
    call, mask = TAKERS[name], torch.tensor([[1, 0, 1], [1, 1, 0], [0, 0, 1]])
    with pytest.raises(
        ValueError, match=r"\(3,\) for data of shape \(3, 3\); use \w*mask\[None\] or \w*mask\[:, None\]$"
    ):
        call(mask[0] > 0)
    call(mask[:1] > 0)
    torch.testing.assert_close(call(mask), call(mask > 0), equal_nan=True, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"integers 0 and 1 .*found the entry 7"):
        call(7 * mask)
    with pytest.raises(TypeError, match=r"use .* != 0, or .* == 0 for an additive mask"):
        call(torch.where(mask > 0, 0.0, -inf))
