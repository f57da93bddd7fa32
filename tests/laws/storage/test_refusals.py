"""Which operations work on which layouts: what does not, says so and names the conversion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from tests.laws.stored import BSC, BSR, COO, CSC, CSR, Sparse

#: Blocks of 2 x 3 entries, in (4, 6).
MASK = torch.tensor([[1, 0], [0, 1]]).bool().repeat_interleave(2, 0).repeat_interleave(3, 1)


def stored(layout: torch.layout) -> mg.MaskedTensor:
    blocksize = (2, 3) if layout in (BSR, BSC) else None
    return Sparse(layout, 2, blocksize)(torch.linspace(-1, 1, 24).reshape(4, 6).double(), MASK)


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


@pytest.mark.parametrize("layout", [COO, CSR, CSC, BSR, BSC], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_names_the_conversion(call: str, layout: torch.layout) -> None:
    with pytest.raises(UnsupportedLayoutError, match=r"x\.to_dense\(\)") as caught:
        CALLS[call](stored(layout))
    assert "torch." in str(caught.value)
    assert not isinstance(caught.value, AttributeError)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda x: x.sum(2), IndexError, "Dimension out of range"),
        (lambda x: torch.norm(x, "nuc"), mg.UndefinedOnMaskedError, "nuc"),
        (lambda x: x.sum((0, 0)), RuntimeError, "twice"),
        (lambda x: x.roll((1, 2), (0,)), RuntimeError, "must align"),
        (lambda x: x.roll((1, 2)), RuntimeError, "must align"),
        (lambda x: x.flip((1, 1)), RuntimeError, "duplicate value"),
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
        call(stored(CSR))
