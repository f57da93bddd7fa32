"""Masks that are MaskedTensors, and data that has a mask already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nan

import maskgrad as mg
from tests.poison import assert_entries, on

KEPT = [[5, None, 3], [7, None, None]]


def labels(kind: str) -> Any:
    """Sequences of two lengths, one of whose labels is to be ignored."""
    x = mg.from_lengths(torch.tensor([[5, -100, 3], [7, -100, 9]]), torch.tensor([3, 1]))
    return {
        "boolean": lambda: x,
        "jagged": x.to_jagged,
        "coo": x.to_sparse,
        "csr": lambda: x.to_sparse(layout=torch.sparse_csr),
        "csc": lambda: x.to_sparse(layout=torch.sparse_csc),
    }[kind]()


KINDS = ("boolean", "jagged", "coo", "csr", "csc")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", KINDS)
def test_a_comparison_is_a_mask(kind: str, of: str) -> None:
    x = labels(kind)
    found = mg.masked(x, labels(of) != -100)
    assert found.layout == torch.strided
    assert found.tolist() == KEPT
    array = np.ma.masked_equal(x.to_numpy(), -100)
    assert found.mask.tolist() == (~np.ma.getmaskarray(array)).tolist()


def test_a_mask_that_does_not_say_it_of_every_entry() -> None:
    data, x = torch.ones(2), mg.masked(torch.ones(2), on(1, 0))
    unknown = x > 0
    for whole in (data, mg.masked(data), mg.masked(data).to_sparse()):
        with pytest.raises(ValueError, match=r"not specified at every .* mask.filled\(False\)"):
            mg.masked(whole, unknown)
        assert_entries(mg.masked(whole, unknown.filled(False)), [1.0, None])
        assert_entries(mg.masked(whole, unknown.filled(True)), [1.0, 1.0])
    assert_entries(mg.masked(x, unknown), [1.0, None])
    assert_entries(mg.masked(data, mg.masked(on(1, 0))), [1.0, None])
    with pytest.raises(TypeError, match=r"found torch\.float32; use mask != 0"):
        mg.masked(x, x)


def test_masked_rows_with_offsets() -> None:
    leaf = torch.tensor([[1.0, nan], [2.0, 3.0], [nan, nan], [4.0, 5.0]], requires_grad=True)
    rows = mg.masked(leaf, on([1, 0], [1, 1], [0, 0], [1, 1]))
    found = mg.from_offsets(rows, torch.tensor([0, 3, 3, 4]))
    assert_entries(
        found.detach(),
        [
            [[1.0, None], [2.0, 3.0], [None, None]],
            [[None, None]] * 3,
            [[4.0, 5.0], [None, None], [None, None]],
        ],
    )
    found.square().sum().backward()
    assert leaf.grad.tolist() == [[2.0, 0.0], [4.0, 6.0], [0.0, 0.0], [8.0, 10.0]]
    assert mg.from_offsets(mg.masked(torch.ones(2)), torch.tensor([0, 2]), 3).tolist() == [[1.0, 1.0, None]]
    with pytest.raises(TypeError, match="strided"):
        mg.from_offsets(rows.to_sparse(), torch.tensor([0, 4]))


def test_nan_of_what_is_masked() -> None:
    for x in (
        mg.masked(torch.tensor([1.0, nan, nan]), on(1, 1, 0)),
        mg.masked(torch.tensor([1.0, nan, 2.0]), on(1, 1, 0)),
    ):
        assert_entries(mg.from_nan(x), [1.0, None, None])
        assert_entries(mg.from_nan(x.to_sparse()), [1.0, None, None])


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_masked_by_a_comparison(kind: str) -> None:
    x = labels(kind).double().detach().requires_grad_()
    mg.mask_gradient(x, x != -100).sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0, 1.0], [1.0, None, None]]


def test_a_function_of_plain_tensors_names_what_to_write() -> None:
    mask = mg.masked(on(1, 0), on(1, 1))
    with pytest.raises(TypeError, match=r"found MaskedTensor; use mask.filled\(False\)"):
        mg.functional.mean(torch.tensor([1.0, 5.0]), mask=mask)
    assert mg.functional.mean(torch.tensor([1.0, 5.0]), mask=mask.filled(False)).item() == 1.0
