"""Structures are taken apart into plain tensors and put together again."""

from __future__ import annotations

from typing import NamedTuple

import torch

import maskgrad as mg
from maskgrad.export.ports import argument_names, input_names_of, unpack

X = mg.masked(torch.tensor([[1.0, float("nan")], [3.0, 4.0]]), torch.tensor([[True, False], [True, True]]))


class Pair(NamedTuple):
    data: object
    rest: object


def test_no_garbage_leaves() -> None:
    _, (data, mask) = unpack(X, "output")
    assert data.tolist() == [[1.0, 0.0], [3.0, 4.0]]
    assert torch.equal(mask, X.mask)
    _, (flags, _) = unpack(mg.masked(torch.ones(2) > 0, torch.tensor([True, False])), "output")
    assert flags.tolist() == [True, False]


def test_names_follow_the_signature_and_masks_give_way() -> None:
    def function(x, pair, x_mask, *rest, flag): ...

    args = (X, Pair(X, {"a b": X}), torch.ones(1), torch.ones(1), X.to_sparse())
    ports, _ = unpack((args, {"flag": torch.ones(1)}), "args")
    arguments = argument_names(function, 5)
    assert input_names_of(ports, arguments, None) == (
        *("x", "x_mask_1", "pair_data", "pair_data_mask", "pair_rest_a_b", "pair_rest_a_b_mask", "x_mask"),
        *("rest_0", "rest_1_values", "rest_1_indices", "flag"),
    )
