"""Which operations work on which layouts: what does not, says so and names the conversion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from tests.laws.storage.layouts import BY_NAME, entries_of, stored

LAYOUTS = ("coo", "csr", "csc", "bsr-2x3", "bsc-2x3")

#: What is not in PyTorch's database; the law of the sparse layouts asks the same of all that is.
CALLS: dict[str, Any] = {
    "setitem": lambda x: x.__setitem__(0, 1.0),
    "stride": lambda x: x.stride(),
    "where with a number": lambda x: torch.where(torch.ones(x.shape, dtype=torch.bool), x, 0.0),
    "cat with dense": lambda x: torch.cat([x, torch.zeros(x.shape, dtype=torch.float64)]),
    "index of two dimensions": lambda x: x[torch.zeros(2, 2, 2, dtype=torch.long)],
    "index of several kinds": lambda x: (
        x[torch.tensor([0]), :, torch.tensor([0])] if x.ndim > 2 else x[[0], None, [0]]
    ),
    "another norm of a matrix": lambda x: torch.linalg.norm(x, 1),
    "prelu by a stored weight": lambda x: F.prelu(torch.ones(2, x.numel()), x.flatten()),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_names_the_conversion(call: str, name: str) -> None:
    x = stored(BY_NAME[name], entries_of(BY_NAME[name]))
    with pytest.raises(UnsupportedLayoutError, match=r"x\.to_dense\(\)") as caught:
        CALLS[call](x)
    assert "torch." in str(caught.value)
    assert not isinstance(caught.value, AttributeError)


def test_a_nuclear_norm_does_not_exist() -> None:
    x = stored(BY_NAME["csr"], entries_of(BY_NAME["csr"]))
    with pytest.raises(mg.UndefinedOnMaskedError, match="nuc"):
        torch.norm(x, "nuc")


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda x: x.sum(2), IndexError, "Dimension out of range"),
        (lambda x: x.softmax(5), IndexError, "Dimension out of range"),
        (lambda x: x.sum((0, 0)), RuntimeError, "twice"),
        (lambda x: x.reshape(7, 7), RuntimeError, "invalid for input of size 24"),
        (lambda x: x.permute(0, 0), RuntimeError, "duplicate dims"),
        (lambda x: x.narrow(0, 3, 2), RuntimeError, "exceeds dimension size"),
        (lambda x: x.narrow(0, 9, 2), IndexError, "start out of range"),
        (lambda x: x.index_select(0, torch.tensor([4])), IndexError, "out of range"),
        (lambda x: x.index_select(0, torch.tensor([-1])), IndexError, "out of range"),
        (lambda x: x.index_select(0, torch.tensor([0.0])), IndexError, "dtype"),
        (lambda x: x[4], IndexError, "out of bounds"),
        (lambda x: x[[4]], IndexError, "out of range"),
        (lambda x: x[0, 0, 0], IndexError, "too many indices"),
        (lambda x: x[::-1], ValueError, "step must be greater"),
        (lambda x: x[torch.ones(3, dtype=torch.bool)], IndexError, "does not match"),
        (lambda x: x[torch.tensor([0.5])], IndexError, "integer or Boolean"),
        (lambda x: x[x > 0], TypeError, "must be a plain tensor"),
        (lambda x: x[True], IndexError, "single Boolean"),
        (lambda x: x[torch.tensor([0, 9]), torch.tensor([0, 0])], IndexError, "out of range"),
        (lambda x: torch.cat([x, x.T]), RuntimeError, "must match"),
        (lambda x: x @ x, RuntimeError, "reduction dim"),
        (lambda x: torch.bmm(x, x), RuntimeError, "3"),
        (lambda x: x @ torch.tensor(2.0), RuntimeError, "at least 1D"),
        (lambda x: torch.where(x, x, x), TypeError, "Boolean"),
        (lambda x: x.expand(3, 4, 7), RuntimeError, "must match the existing size"),
        (lambda x: x.expand(6), RuntimeError, "number of sizes"),
        (lambda x: x.diagonal(0, 1, 1), RuntimeError, "identical"),
        (lambda x: x.flatten(1, 0), RuntimeError, "start_dim"),
        (lambda x: x.movedim((0, 0), (0, 1)), RuntimeError, "movedim"),
        (lambda x: x.view(torch.int32), TypeError, "same size"),
        (lambda x: x.add_(torch.ones(3, 4, 6)), RuntimeError, "broadcast"),
        (lambda x: F.prelu(x, torch.ones(3)), RuntimeError, "weight"),
        (lambda x: F.binary_cross_entropy(x, torch.ones(6)), ValueError, "size"),
        (lambda x: F.gaussian_nll_loss(x, x, -1.0), ValueError, "negative"),
        (lambda x: torch.allclose(x, x.T), RuntimeError, "shapes must be equal"),
        (lambda x: torch.dot(x, x), RuntimeError, "1D"),
        (lambda x: x @ torch.ones(6, 2), RuntimeError, "same dtype"),
        (lambda x: (x > 0) @ torch.ones(6, 2, dtype=torch.bool), RuntimeError, r"Booleans; use x\.long\(\)"),
        (lambda x: x.to(torch.complex64).amax(1), RuntimeError, "complex"),
        (lambda x: x.long().mean(), RuntimeError, "dtype"),
        (lambda x: x.long().mean(1), RuntimeError, "dtype"),
        (lambda x: x.long().var(), RuntimeError, "dtype|floating"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call(stored(BY_NAME["csr"], entries_of(BY_NAME["csr"]).detach()))
