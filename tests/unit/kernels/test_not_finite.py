"""Specified infinities and NaN, zeros and ties: values and gradients are PyTorch's on each row alone, in any layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.unit.kernels.suite import inf, nan

FINITE = [[0.0, 1, -1], [0, 0, 1], [0, 0, 0], [2, -2, 1], [2, 2, 1], [-0.0, 0, -1], [1, 1, 1]]
ROWS = [
    *([nan, 1, 2], [1, 2, nan], [inf, 1, -3], [1, 0, inf], [-inf, 1, 2], [inf, nan, 0], [-inf, nan, 0]),
    *([-inf, -inf, -inf], [inf, inf, 0], [3e4, -3e4, 0], [-6e4, -6e4, -6e4], *FINITE),
]

WITHOUT_ZEROS = [row for row in ROWS if 0 not in row or row in FINITE]

#: A function of a tensor and a dimension, and the rows on which it is PyTorch's.
LINES: dict[str, tuple[Callable[[Any, int], Any], list[list[float]]]] = {
    "softmax": (lambda x, dim: x.softmax(dim), ROWS),
    "log_softmax": (lambda x, dim: x.log_softmax(dim), ROWS),
    "logsumexp": (lambda x, dim: x.logsumexp(dim), [*ROWS, [-inf, -inf, inf]]),
    "sum": (lambda x, dim: x.sum(dim), ROWS),
    "mean": (lambda x, dim: x.mean(dim), ROWS),
    "amax": (lambda x, dim: x.amax(dim), ROWS),
    "amin": (lambda x, dim: x.amin(dim), ROWS),
    "prod": (lambda x, dim: x.prod(dim), FINITE),  # with an infinity and a zero it depends on the order
    "var": (lambda x, dim: x.var(dim), FINITE),
    **{
        f"norm {ord}": (lambda x, dim, ord=ord: torch.linalg.vector_norm(x, ord, dim), rows)
        for ord, rows in [
            *((ord, WITHOUT_ZEROS) for ord in (0.5, 1, 2, 3, inf, -inf)),
            (-1, ROWS[:1] + ROWS[-1:]),
        ]
    },
}


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
@pytest.mark.parametrize("name", LINES)
def test_what_is_not_finite_surfaces_as_in_torch(name: str, layout: torch.layout) -> None:
    function, rows = LINES[name]
    leaf = F.pad(torch.tensor(rows, dtype=torch.float64), (0, 1), value=nan).requires_grad_()
    x = mg.masked(leaf, torch.tensor([True, True, True, False]).expand(leaf.shape))
    found = function(x if layout == torch.strided else x.to_sparse(layout), 1).to_dense().filled(0.0)
    weight = (torch.tensor([0.3, -1.0, 0.7, 0.0]) if found.ndim > 1 else torch.tensor(0.3)).double()
    (slope,) = torch.autograd.grad(found, leaf, weight.expand(found.shape))
    for k, row in enumerate(rows):
        alone = torch.tensor(row, dtype=torch.float64, requires_grad=True)
        wanted = function(alone, 0)
        expected = torch.autograd.grad(wanted, alone, weight[:3] if wanted.ndim else weight)
        torch.testing.assert_close(found[k, :3] if wanted.ndim else found[k], wanted, equal_nan=True)
        torch.testing.assert_close(slope[k], F.pad(*expected, (0, 1)), equal_nan=True)
