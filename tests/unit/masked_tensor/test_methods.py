"""Operators, methods and properties of the class: derived from the records, both operand orders."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor import methods
from maskgrad.semantics.registry import OPERATIONS
from tests.poison import assert_entries, inf, poisoned

X = [1.0, None, 4.0]
PLAIN = torch.tensor([2.0, inf, 3.0], dtype=torch.float64)
ARITHMETIC = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
]  # fmt: skip
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("function", ARITHMETIC + COMPARISONS)
@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("other", [2, 2.5, PLAIN, torch.tensor(3.0), np.float32(2), np.int64(3), "masked"])
def test_operators_act_on_specified_entries(function: Any, exchanged: bool, other: Any) -> None:
    x, full = poisoned(X), torch.tensor([1.0, 1.0, 4.0], dtype=torch.float64)
    if isinstance(other, str):
        other, plain, mask = (
            poisoned([2.0, 3.0, None]),
            torch.tensor([2.0, 3.0, 1.0]).double(),
            [True, False, False],
        )
    else:
        plain, mask = other, [True, False, True]
    result = function(other, x) if exchanged else function(x, other)
    expected = function(plain, full) if exchanged else function(full, plain)
    assert isinstance(result, mg.MaskedTensor)
    assert result.dtype == torch.as_tensor(expected).dtype
    assert_entries(result, [e if m else None for e, m in zip(expected.tolist(), mask, strict=True)])


def test_every_record_put_its_methods_on_the_class() -> None:
    for operation in OPERATIONS:
        for name in operation.methods:
            found = vars(mg.MaskedTensor)[name]
            assert isinstance(found, property) == (
                operation.is_property or name in {"layout", "real", "imag"}
            )
            assert hasattr(Tensor, name)


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.jagged])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_properties_are_those_of_a_tensor(layout: torch.layout, is_compiled: bool) -> None:
    dense = torch.arange(6.0).reshape(2, 3).double()
    x = mg.from_lengths(dense, torch.tensor([1, 3]))
    x = x if layout is torch.strided else x.to_sparse(layout=layout)
    wanted = {name: getattr(dense, name) for name in (*methods.OF_VALUES.split(), "shape", "ndim")}
    wanted |= {"is_sparse": layout is torch.sparse_coo, "is_sparse_csr": layout is torch.sparse_csr}
    wanted["nbytes"] = x._values.nbytes  # of what is stored
    if is_compiled:
        del wanted["retains_grad"], wanted["grad_fn"]  # not known to torch.compile

    def read(x: Any) -> dict[str, Any]:
        return {name: getattr(x, name) for name in wanted}

    read = torch.compile(read, backend="eager", fullgraph=True) if is_compiled else read
    assert read(x) == wanted
    assert torch.sum(x).dtype is x.dtype
    x.requires_grad_()
    assert (x * 2).grad_fn is not None
    assert x.is_leaf
    assert not (x * 2).is_leaf


def test_methods_say_what_they_are() -> None:
    method = mg.MaskedTensor.exp  # type: ignore[attr-defined]
    assert method.__name__ == "exp"
    assert "MaskedTensor.exp" in method.__qualname__
    assert "``torch.Tensor.exp``" in method.__doc__
    assert "Pattern: intersection" in method.__doc__
    assert "in place" in mg.MaskedTensor.exp_.__doc__  # type: ignore[attr-defined]


def test_methods_take_keywords_and_synonyms() -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]])
    assert_entries(x.sum(axis=0), [4.0, 4.0])
    assert_entries(x.sum(dim=1, keepdims=True), [[1.0], [7.0]])
    assert_entries(x.add(x, alpha=2), [[3.0, None], [9.0, 12.0]])
    assert_entries(torch.sub(input=x, other=x, alpha=3), [[-2.0, None], [-6.0, -8.0]])
    assert_entries(x.div(3, rounding_mode="floor"), [[0.0, None], [1.0, 1.0]])
    assert_entries((x / 3).round(decimals=1), [[0.3, None], [1.0, 1.3]])


def test_unflatten_is_compiled_in_one_graph() -> None:
    """The method of torch.Tensor is written in Python, in words that torch.compile cannot trace."""
    x = poisoned([1.0, None, 3.0, 4.0])
    for function in (lambda x: x.unflatten(0, (2, 2)), lambda x: Tensor.unflatten(x, dim=0, sizes=(2, -1))):
        found = torch.compile(function, backend="eager", fullgraph=True)(x)
        assert_entries(found, [[1.0, None], [3.0, 4.0]])
        assert_entries(function(x), [[1.0, None], [3.0, 4.0]])
