"""Embeddings: unspecified indices read nothing, take no part, and leave no trace in any gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, nan, on

INDICES = torch.tensor([[2, -7, 2], [10**9, 10**9, 0], [-1, -1, -1]])
KNOWN = on([1, 0, 1], [0, 0, 1], [0, 0, 0])


def indices() -> mg.MaskedTensor:
    return mg.masked(INDICES, KNOWN)


@pytest.mark.parametrize("known", [on(1, 0, 1), on(0, 0, 0)])
def test_only_rows_that_are_read_are_renormalised(known: Tensor) -> None:
    weight, expected = torch.full((4, 2), 3.0), torch.full((4, 2), 3.0)
    positions = torch.tensor([1, 10**9, 3])
    F.embedding(positions[known], expected, max_norm=1.0)
    F.embedding(mg.masked(positions, known), weight, max_norm=1.0)
    torch.testing.assert_close(weight, expected)
    again = torch.full((4, 2), 3.0)
    F.embedding_bag(mg.masked(positions, known), again, torch.tensor([0]), max_norm=1.0)
    torch.testing.assert_close(again, expected)


def test_the_norm_of_a_masked_row_is_that_of_its_entries() -> None:
    values, mask = torch.tensor([[3.0, nan], [3.0, 4.0], [0.3, nan]]), on([1, 0], [1, 1], [1, 0])
    weight = mg.masked(values, mask)
    result = F.embedding(torch.tensor([0, 1, 2]), weight, max_norm=1.0)
    assert_entries(result, [[1.0, None], [0.6, 0.8], [0.3, None]], tol=1e-5)
    assert_entries(weight, [[1.0, None], [0.6, 0.8], [0.3, None]], tol=1e-5)


def test_a_bag_of_padding_is_zero_and_one_of_nothing_unspecified() -> None:
    bags = mg.masked(torch.tensor([[1, 1], [1, 1], [1, 3]]), on([1, 1], [0, 0], [1, 1]))
    table = torch.randn(4, 2, dtype=torch.float64)
    for weight in (table, mg.masked(table)):
        for mode in ("sum", "mean", "max"):
            result = F.embedding_bag(bags, weight, mode=mode, padding_idx=1)
            assert_entries(result, [[0.0, 0.0], [None, None], table[3].tolist()])


def test_arguments_that_do_not_fit_a_bag_are_refused_as_by_torch() -> None:
    weight = torch.randn(4, 2, dtype=torch.float64)
    offsets = mg.masked(torch.tensor([0, 3]))
    with pytest.raises(TypeError, match="offsets must be a plain tensor"):
        F.embedding_bag(indices().reshape(-1), weight, offsets)
    with pytest.raises(ValueError, match="offsets has to be None"):
        F.embedding_bag(indices(), weight, torch.tensor([0]))
    with pytest.raises(ValueError, match="1D Tensor but got None"):
        F.embedding_bag(indices().reshape(-1), weight)
    with pytest.raises(ValueError, match="1D or 2D"):
        F.embedding_bag(mg.masked(torch.zeros(1, 1, 1).long()), weight)
    with pytest.raises(ValueError, match="same shape as the input"):
        F.embedding_bag(indices(), weight, mode="sum", per_sample_weights=torch.ones(3))
    with pytest.raises(NotImplementedError, match="only supported for mode='sum'"):
        F.embedding_bag(indices(), weight, per_sample_weights=torch.ones(3, 3).double())
    with pytest.raises(ValueError, match="mode has to be one of"):
        F.embedding_bag(indices(), weight, mode="median")
    with pytest.raises(ValueError, match="2D Tensor"):
        F.embedding_bag(indices(), weight[0])
    with pytest.raises(RuntimeError, match="indices"):  # the order of arguments that PyTorch has deprecated
        F.embedding_bag(weight, indices())
