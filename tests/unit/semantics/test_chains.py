"""Chains of matrices: which products exist, in which order they are made, and powers."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, poisoned

STEP = [[None, 2.0, None], [None, None, 3.0], [None, None, None]]


def test_plain_parts_and_vectors() -> None:
    v, ones = poisoned([None, 1.0]), torch.ones(2, 2).double()
    assert_entries(torch.linalg.multi_dot((torch.ones(2).double(), ones, ones, v)), 4.0)
    assert_entries(
        torch.linalg.multi_dot(tensors=[ones, poisoned([[None, None], [1.0, 2.0]])]), [[1.0, 2.0]] * 2
    )
    assert_entries(torch.chain_matmul(poisoned([[1.0, None]])), [[1.0, None]])


def test_powers_that_do_not_exist() -> None:
    with pytest.raises(mg.UndefinedOnMaskedError, match="no inverse"):
        poisoned(STEP).matrix_power(-1)
    with pytest.raises(RuntimeError, match="square"):
        torch.linalg.matrix_power(poisoned([[1.0, None]]), 2)


def test_operands_of_other_ranks_are_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="at least 2 tensors"):
        torch.linalg.multi_dot([poisoned(STEP)])
    with pytest.raises(RuntimeError, match="tensor 1 must be 2D but got 1D"):
        torch.linalg.multi_dot([poisoned(STEP), torch.ones(3).double(), poisoned(STEP)])
    with pytest.raises(RuntimeError, match="tensor 0 must be 1D or 2D but got 3D"):
        torch.linalg.multi_dot([poisoned([STEP]), poisoned(STEP)])
    with pytest.raises(RuntimeError, match="tensor 1 must be 2D"):
        torch.chain_matmul(poisoned(STEP), torch.ones(3).double())
