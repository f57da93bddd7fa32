"""Masks as arguments: every mask from outside passes one check."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import maskgrad as mg
from maskgrad.patterns.mask_arguments import check_mask
from tests.poison import assert_entries, gradient, inf, nan, on
from tests.unit.doctor.programs import recognised

CPU = torch.device("cpu")


def test_a_mask_of_the_right_shape_is_returned_itself() -> None:
    mask = on(1, 0)
    assert check_mask(mask, torch.Size([2]), CPU) is mask


@pytest.mark.parametrize("mask", [on([1, 0]), on([1], [0], [1]), on(1), torch.tensor(True)])
def test_a_mask_that_repeats_is_expanded_not_copied(mask: torch.Tensor) -> None:
    wide = check_mask(mask, torch.Size([3, 2]), CPU)
    assert wide.shape == (3, 2)
    assert wide.data_ptr() == mask.data_ptr()


@pytest.mark.parametrize(
    ("mask", "kind", "words"),
    [
        ([True], TypeError, "Boolean torch.Tensor, .*found list"),
        (torch.ones(2), TypeError, "found torch.float32; use mask != 0, or mask == 0 for an additive mask"),
        (torch.ones(2, dtype=torch.complex64), TypeError, "found torch.complex64"),
        (
            torch.tensor([1, 7]),
            ValueError,
            "integers 0 and 1 .*found the entry 7; use mask != 0, or mg.from_lengths",
        ),
        (torch.tensor([-1, 0], dtype=torch.int8), ValueError, "found the entry -1"),
        (on(1, 0, 1), ValueError, r"found a mask of shape \(3,\) for data of shape \(2,\)$"),
        (on([1, 0]), ValueError, r"found a mask of shape \(1, 2\) for data of shape \(2,\)$"),
        (on(1, 0).to("meta"), ValueError, "device of the data, cpu, found meta"),
        (on(1, 0).to_sparse(), TypeError, "strided"),
    ],
)
def test_refusals_say_what_was_expected_and_found(mask: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        check_mask(mask, torch.Size([2]), CPU)


@pytest.mark.parametrize(
    ("sizes", "shape", "ways"),
    [
        ((3,), (3, 3), ["None", ":, None"]),  # rows or columns: only the user knows
        ((2,), (2, 3), [":, None"]),
        ((2, 3), (2, 3, 4), [":, :, None"]),
        ((2, 1), (2, 3, 4), [":, None"]),  # it ends in size 1, and does not broadcast
        ((3,), (3, 3, 3), ["None, None", "None, :, None", ":, None, None"]),
        ((0,), (0, 3), [":, None"]),
        ((5,), (2, 3), []),
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


INTEGERS = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_zero_and_one_are_a_mask(dtype: torch.dtype) -> None:
    numbers = torch.tensor([[1], [0], [1]]).to(dtype)
    mask = check_mask(numbers, torch.Size([3, 2]), CPU)
    assert mask.tolist() == [[True, True], [False, False], [True, True]]
    assert check_mask(numbers[:0], torch.Size([0, 2]), CPU).dtype is torch.bool
    with pytest.raises(ValueError, match=r"found the entry 2; use mask != 0$"):
        check_mask(torch.tensor([[1], [2], [0]]).to(dtype), mask.shape, CPU)


def test_an_expanded_mask_of_integers_stays_expanded() -> None:
    wide = torch.tensor([[1], [0]])[..., None].expand(2, 3, 4)
    assert check_mask(wide, wide.shape, CPU).stride() == (1, 0, 0)


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


def test_a_mask_of_integers_is_not_written_to() -> None:
    numbers = torch.tensor([1, 0])
    x = mg.masked(torch.ones(2), numbers)
    x[0] = mg.unspecified
    assert numbers.tolist() == [1, 0]
    assert x.tolist() == [None, None]


P = torch.nn.Parameter(torch.arange(9.0).view(3, 3))
X = mg.masked(torch.ones(3, 3), torch.eye(3) > 0)
ROWS = on(1, 1, 0)


def passed(x: Any, mask: torch.Tensor) -> torch.Tensor:
    """The gradient that ``mask_gradient`` passes, from a loss of all entries."""
    leaf = mg.masked(torch.ones(3, 3, requires_grad=True), X.mask) if isinstance(x, mg.MaskedTensor) else x
    leaf = leaf.to_sparse() if x is SPARSE else leaf
    return gradient(mg.mask_gradient(leaf, mask), leaf)


SPARSE = X.to_sparse()


def accumulated(mask: torch.Tensor, name: str | None) -> torch.Tensor:
    """The gradient of a mean over the entries under ``mask``, of one loss or of a named one."""
    weight = torch.nn.Parameter(P.detach().clone())
    accumulator = mg.GradientAccumulator(weight)
    losses = weight * weight
    accumulator.backward(
        losses if name is None else {name: losses}, mask=mask if name is None else {name: mask}
    )
    accumulator.finish()
    assert weight.grad is not None
    return weight.grad


def trained(mask: torch.Tensor) -> torch.Tensor | None:
    """The entries that ``train_only`` leaves to optimizers."""
    mg.train_only(P, mask)
    found = mg.optim.trained_entries(P)
    mg.train_only(P, None)
    return found


#: Public functions except those of mg.functional with a mask among their arguments, and what it changes.
TAKE_A_MASK: dict[str, Callable[[torch.Tensor], Any]] = {
    "masked": lambda mask: mg.masked(torch.ones(3, 3), mask).mask,
    "masked, of a MaskedTensor": lambda mask: mg.masked(X, mask).mask,
    "masked, sparse": lambda mask: mg.masked(SPARSE, mask).mask,
    "train_only": trained,
    "mask_gradient": lambda mask: passed(P, mask),
    "mask_gradient, of a MaskedTensor": lambda mask: passed(X, mask),
    "mask_gradient, sparse": lambda mask: passed(SPARSE, mask),
    "backward": lambda mask: accumulated(mask, None),
    "backward, of named losses": lambda mask: accumulated(mask, "a"),
    "logaddexp": lambda mask: mg.functional.logaddexp(P, P, input_mask=mask),
    "logaddexp, of the other": lambda mask: mg.functional.logaddexp(P, P, other_mask=mask),
}
ORDER = {"norm": (2.0, 1), "normalize": (2.0, 1), "quantile": (0.5, 1)}


def functional(name: str) -> Callable[[torch.Tensor], Any]:
    """A masked function along a dimension of ``P``."""
    return lambda mask: getattr(mg.functional, name)(P, *ORDER.get(name, (1,)), mask=mask)


FUNCTIONAL = {
    name: functional(name)
    for name in mg.functional.__all__
    if "mask" in signature(getattr(mg.functional, name)).parameters
}
#: A mask here is no argument beside data: its shape is its own, or it lies on leading dimensions.
ALONE: dict[str, Callable[[torch.Tensor], Any]] = {
    "plot.pattern": lambda mask: np.asarray(mg.plot.pattern(mask, Figure().subplots()).images[0].get_array()),
    "padding= of the doctor": lambda mask: recognised({"x": P}, {"x": mask})[0].mask,
}
BESIDE_DATA = TAKE_A_MASK | FUNCTIONAL
TAKERS = BESIDE_DATA | ALONE


@pytest.mark.parametrize("name", BESIDE_DATA)
def test_every_mask_that_is_an_argument_passes_the_check(name: str) -> None:
    call = BESIDE_DATA[name]
    with pytest.raises(
        ValueError, match=r"\(3,\) for data of shape \(3, 3\); use \w*mask\[None\] or \w*mask\[:, None\]$"
    ):
        call(ROWS)
    for mask in (ROWS[None], ROWS[:, None], torch.tensor(True)):
        call(mask)


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_every_mask_may_be_of_integers(name: str, dtype: torch.dtype) -> None:
    mask = on([1, 0, 1], [1, 1, 0], [0, 0, 1])
    found, wanted = (TAKERS[name](one) for one in (mask.to(dtype), mask))
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("name", TAKERS)
def test_other_integers_and_floats_are_refused_in_every_mask(name: str) -> None:
    mask = torch.tensor([[1, 0, 1], [1, 7, 0], [0, 0, 1]])
    with pytest.raises(ValueError, match=r"integers 0 and 1 .*found the entry 7"):
        TAKERS[name](mask)
    additive = torch.where(mask > 0, 0.0, -inf)
    if name == "padding= of the doctor":  # a batch may hold one, and which side is padding is known there
        assert torch.equal(TAKERS[name](additive), mask > 0)
        additive = torch.where(mask > 0, 0.5, 0.25)
    with pytest.raises(
        (TypeError, ValueError), match=r"(use .* != 0, or .* == 0 for an additive mask|mg.masked)"
    ):
        TAKERS[name](additive)


def test_every_public_argument_called_mask_is_in_the_table() -> None:
    found = {
        f"{name}.{method}" if method else name
        for name in mg.__all__
        for method, function in [("", getattr(mg, name)), *vars(getattr(mg, name)).items()]
        if isinstance(getattr(mg, name), type) or not method
        if callable(function) and not method.startswith("_") and "mask" in _arguments(function)
    }
    of_documents = {"aggregate", "pack_documents", "unpack_documents"}  # tests/unit/documents
    assert found == {"masked", "mask_gradient", "train_only", "GradientAccumulator.backward", *of_documents}
    of_modules = {
        name
        for module in (mg.interop, mg.metrics, mg.nn, mg.plot, mg.sparse, mg.optim)
        for name in module.__all__
        if callable(getattr(module, name)) and "mask" in _arguments(getattr(module, name))
    }
    assert of_modules == set()


def _arguments(function: Callable[..., Any]) -> Any:
    try:
        return signature(function).parameters
    except ValueError:  # a class without a signature, such as an error
        return ()
