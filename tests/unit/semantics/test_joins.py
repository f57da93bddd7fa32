"""Joins: pattern and values are put together alike; plain parts are fully specified."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_number, gradient, inf, leaf, nan, poisoned

A, B = poisoned([1.0, None]), poisoned([None, 4.0])


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        (lambda: torch.cat([A, B]), [1.0, None, None, 4.0]),
        (lambda: torch.cat(tensors=(A, torch.tensor([inf]))), [1.0, None, inf]),
        (lambda: torch.concat((torch.zeros(1), A), dim=0), [0.0, 1.0, None]),
        (lambda: torch.stack([A, B]), [[1.0, None], [None, 4.0]]),
        (lambda: torch.stack([A, torch.ones(2)], dim=-1), [[1.0, 1.0], [None, 1.0]]),
        (lambda: torch.hstack([A, B]), [1.0, None, None, 4.0]),
        (lambda: torch.vstack([A, B]), [[1.0, None], [None, 4.0]]),
        (lambda: torch.dstack([A, B]), [[[1.0, None], [None, 4.0]]]),
        (lambda: torch.column_stack([A, B]), [[1.0, None], [None, 4.0]]),
        (lambda: torch.stack([A.sum(), poisoned(None)]), [1.0, None]),
        (lambda: torch.stack([A.amax(), poisoned([None]).amax()]), [1.0, None]),
        (lambda: torch.cat([A, torch.zeros(0)]), [1.0, None]),
    ],
)
def test_parts_side_by_side(join: Any, expected: Any) -> None:
    assert_entries(join(), expected)


def test_a_block_diagonal_has_specified_zeros_outside() -> None:
    result = torch.block_diag(poisoned([[1.0]]), poisoned([[None, 2.0]]))
    assert_entries(result.filled(0.0), [[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    assert_entries(result, [[1.0, 0.0, 0.0], [0.0, None, 2.0]])


def test_gradients_go_back_to_the_parts() -> None:
    a, plain = poisoned([1.0, None], requires_grad=True), leaf(3.0, inf)
    joined = torch.stack([a, plain]) * torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert gradient(joined, a).tolist() == [1.0, 0.0]
    assert gradient(joined, plain).tolist() == [3.0, 4.0]


def test_losses_of_which_one_is_empty_are_combined_by_deletion() -> None:
    x, y = poisoned([1.0, 3.0], requires_grad=True), poisoned([None, None], requires_grad=True)
    full, empty = x.mean(), y.mean()
    both = mg.from_nan(torch.stack([full, empty]))
    assert_entries(both, [2.0, None])
    for total, number in ((both.sum(), 2.0), (both.mean(), 2.0), (full + empty, nan)):
        assert_number(total, number)
        assert gradient(total, x).tolist() == [0.5, 0.5]
        assert gradient(total, y).tolist() == [0.0, 0.0]


def test_a_learnt_factor_of_a_loss_that_may_be_empty() -> None:
    a, b = leaf(2.0), leaf(5.0)
    full, empty = poisoned([1.0, 3.0]).mean(), poisoned([None, None]).mean()
    total = torch.stack([mg.from_nan(full) * a[0], mg.from_nan(empty) * b[0], a.square().sum()]).sum()
    assert_number(total, 8.0)
    assert gradient(total, a).tolist() == [6.0]
    assert gradient(total, b).tolist() == [0.0]


def test_dtypes_promote() -> None:
    assert (
        torch.cat([poisoned([1, None], torch.int32), poisoned([1.5, None], torch.float16)]).dtype
        == torch.float16
    )


def test_shapes_that_do_not_match_are_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        torch.stack([A, poisoned([1.0])])
