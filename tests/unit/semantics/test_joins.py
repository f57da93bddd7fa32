"""Joins: pattern and values are put together alike; plain parts are fully specified."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.poison import assert_entries, gradient, inf, leaf, poisoned

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
    full, empty = poisoned([1.0, 3.0]).mean(), poisoned([None, None]).mean()
    assert_entries(torch.stack([full, empty]).sum(), 2.0)
    assert_entries(full + empty, None)


def test_dtypes_promote() -> None:
    assert (
        torch.cat([poisoned([1, None], torch.int32), poisoned([1.5, None], torch.float16)]).dtype
        == torch.float16
    )


def test_shapes_that_do_not_match_are_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        torch.stack([A, poisoned([1.0])])
