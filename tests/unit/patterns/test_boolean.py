"""The Boolean pattern, and the check that every mask from outside passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.patterns import BooleanPattern
from maskgrad.patterns.boolean import check_mask
from maskgrad.patterns.eager import can_read_values
from tests.poison import on

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
        ([True], TypeError, "Boolean torch.Tensor .*found list"),
        (torch.ones(2), TypeError, "torch.bool .*found torch.float32"),
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
        ((3,), (2, 3), ["None"]),
        ((2, 3), (2, 3, 4), [":, :, None"]),
        ((2, 4), (2, 3, 4), [":, None"]),
        ((2, 1), (2, 3, 4), [":, None"]),  # it ends in size 1, and does not broadcast
        ((3,), (3, 3, 3), ["None, None", "None, :, None", ":, None, None"]),
        ((0,), (0, 3), [":, None"]),
        ((5,), (2, 3), []),
        ((2, 2), (2, 3), []),
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


P = torch.nn.Parameter(torch.arange(9.0).view(3, 3))


def leaf() -> torch.nn.Parameter:
    """A parameter without a gradient from another test."""
    return torch.nn.Parameter(P.detach().clone())


X = mg.masked(torch.ones(3, 3), torch.eye(3) > 0)
ROWS = on(1, 1, 0)
#: Public functions beside mg.functional with a mask among their arguments.
TAKE_A_MASK: dict[str, Callable[[torch.Tensor], Any]] = {
    "masked": lambda mask: mg.masked(torch.ones(3, 3), mask),
    "masked, of a MaskedTensor": lambda mask: mg.masked(X, mask),
    "from_dlpack": lambda mask: mg.interop.from_dlpack(torch.ones(3, 3), mask),
    "train_only": lambda mask: mg.train_only(P, mask),
    "mask_gradient": lambda mask: mg.mask_gradient(P, mask),
    "mask_gradient, of a MaskedTensor": lambda mask: mg.mask_gradient(X, mask),
    "mask_gradient, sparse": lambda mask: mg.mask_gradient(X.to_sparse(), mask),
    "nn.MaskGradient": lambda mask: mg.nn.MaskGradient(mask)(P),
    "backward": lambda mask: mg.GradientAccumulator(p := leaf()).backward(p * 1, mask=mask),
    "backward, of named losses": lambda mask: mg.GradientAccumulator(p := leaf()).backward(
        {"a": p * 1}, mask={"a": mask}
    ),
    "logaddexp": lambda mask: mg.functional.logaddexp(P, P, input_mask=mask),
    "logaddexp, of the other": lambda mask: mg.functional.logaddexp(P, P, other_mask=mask),
}
ORDER = {"norm": (2.0, 1), "normalize": (2.0, 1), "quantile": (0.5, 1)}
FUNCTIONAL = [n for n in mg.functional.__all__ if "mask" in signature(getattr(mg.functional, n)).parameters]


@pytest.mark.parametrize("name", [*TAKE_A_MASK, *FUNCTIONAL])
def test_every_mask_that_is_an_argument_passes_the_check(name: str) -> None:
    def call(mask: torch.Tensor) -> Any:
        if name in TAKE_A_MASK:
            return TAKE_A_MASK[name](mask)
        return getattr(mg.functional, name)(P, *ORDER.get(name, (1,)), mask=mask)

    with pytest.raises(
        ValueError, match=r"\(3,\) for data of shape \(3, 3\); use mask\[None\] or mask\[:, None\]$"
    ):
        call(ROWS)
    for mask in (ROWS[None], ROWS[:, None], torch.tensor(True)):
        call(mask)
    mg.train_only(P, None)


def test_of_a_square_rows_are_meant_or_columns() -> None:
    x = torch.arange(9.0).view(3, 3)
    assert mg.functional.mean(x, mask=ROWS[:, None]) == x[ROWS].mean() == 2.5
    assert mg.functional.mean(x, mask=ROWS[None]) == x[:, ROWS].mean() == 3.5


def test_the_pattern_knows_its_layout_and_shows_its_mask() -> None:
    assert BooleanPattern(on(1)).layout is torch.strided
    assert repr(BooleanPattern(on(1, 0))) == "BooleanPattern(tensor([ True, False]))"


def test_numbers_are_looked_at_only_where_it_is_harmless() -> None:
    assert can_read_values(torch.zeros(2))
    assert not can_read_values(torch.zeros(2, device="meta"))
    seen = []

    def note(row: torch.Tensor) -> torch.Tensor:
        seen.append(can_read_values(row))
        return row

    torch.vmap(note)(torch.zeros(2, 2))
    assert seen == [False]
