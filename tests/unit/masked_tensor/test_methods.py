"""Operators, methods and properties of the class: derived from the records, both operand orders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor import methods
from tests.poison import assert_entries, poisoned


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.jagged])
def test_properties_are_those_of_a_tensor(layout: torch.layout) -> None:
    dense = torch.arange(6.0).reshape(2, 3).double()
    x = mg.from_lengths(dense, torch.tensor([1, 3]))
    x = x if layout is torch.strided else x.to_sparse(layout=layout)
    wanted = {name: getattr(dense, name) for name in (*methods.OF_VALUES.split(), "shape", "ndim")}
    wanted |= {"is_sparse": layout is torch.sparse_coo, "is_sparse_csr": layout is torch.sparse_csr}
    wanted["nbytes"] = x._values.nbytes  # of what is stored

    def read(x: Any) -> dict[str, Any]:
        return {name: getattr(x, name) for name in wanted}

    assert read(x) == wanted
    del wanted["retains_grad"], wanted["grad_fn"]  # not known to torch.compile
    assert torch.compile(read, backend="eager", fullgraph=True)(x) == wanted
    assert not (x.requires_grad_() * 2).is_leaf


def test_unflatten_is_compiled_in_one_graph() -> None:
    """The method of torch.Tensor is written in Python, in words that torch.compile cannot trace."""
    x = poisoned([1.0, None, 3.0, 4.0])
    for function in (lambda x: x.unflatten(0, (2, 2)), lambda x: Tensor.unflatten(x, dim=0, sizes=(2, -1))):
        assert_entries(torch.compile(function, backend="eager", fullgraph=True)(x), [[1.0, None], [3.0, 4.0]])
