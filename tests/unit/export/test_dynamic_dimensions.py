"""Dimensions said for arguments are said for their plain tensors."""

from __future__ import annotations

from typing import Any

import torch

import maskgrad as mg
from maskgrad.export.dynamic_dimensions import batch_dimensions, given_dimensions
from maskgrad.export.ports import unpack

AUTO = torch.export.Dim.AUTO


def ports_of(*args: Any, **kwargs: Any) -> Any:
    return unpack((args, kwargs), "args")


def test_the_first_dimension_of_everything() -> None:
    x = mg.masked(torch.ones(3, 4))
    ports, tensors = ports_of(x, [torch.ones(()), 5], y=x.to_sparse())
    assert batch_dimensions(ports, tensors) == [{0: AUTO}, {0: AUTO}, {}, {0: AUTO}, {1: AUTO}]
    ports, tensors = ports_of(x.to_sparse(torch.sparse_csr))
    assert batch_dimensions(ports, tensors) == [{0: AUTO}, {}, {0: AUTO}]


def test_a_name_is_one_dimension_wherever_it_stands() -> None:
    x = mg.masked(torch.ones(3, 4))
    ports, tensors = ports_of(x, {"a": [torch.ones(3), torch.ones(2)]}, scale=x.to_sparse())
    given = {"x": {0: "n"}, "parts": {"a": [{-1: "n"}, None]}, "scale": {0: "entries"}}
    x_data, x_mask, first, second, values, indices = given_dimensions(
        given, ports, tensors, ("x", "parts"), ["scale"]
    )
    assert x_data[0] is x_mask[0] is first[0]
    assert (list(x_data), second) == ([0], {})
    assert values[0] is indices[1]
    assert values[0].__name__ == "entries"
