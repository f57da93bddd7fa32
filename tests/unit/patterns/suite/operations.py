"""A few operations of each kind, on a layout and on the Boolean mask of the same entries.

All operations on PyTorch's layouts are compared in the same way by ``tests/laws/test_stored.py``, and those on a
Boolean mask with oracles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor import MaskedTensor
from tests.unit.kernels.suite import about
from tests.unit.patterns.suite.conversion import Conversion, put_on
from tests.unit.patterns.suite.declaration import OTHERS, assert_same


def like(x: Any, *sizes: int) -> Tensor:
    return torch.linspace(1, 2, torch.Size(sizes).numel(), dtype=torch.float64).reshape(sizes)


def third(x: Any) -> Tensor:
    return (torch.arange(x.numel()) % 3 > 0).reshape(x.shape)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "with itself": lambda x: x + x.square(),
    "with a row": lambda x: x * like(x, *x.shape[-1:]),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "total": lambda x: x.sum(),
    "sum along the last": lambda x: x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(0),
    "amax": lambda x: x.amax(-1),
    "logsumexp": lambda x: x.logsumexp(0),
    "softmax": lambda x: x.softmax(-1),
    "loss": lambda x: F.mse_loss(x, torch.ones(x.shape, dtype=torch.float64)),
    "product": lambda x: x @ like(x, x.shape[-1], 3),
    "transposed": lambda x: x.transpose(0, 1),
    "x[0]": lambda x: x[0],
    "x[1:]": lambda x: x[1:],
    "x[tensor]": lambda x: x[torch.tensor([-1, 0])],
    "x[mask]": lambda x: x[third(x)] if x.ndim else x,
    "joined": lambda x: torch.cat([x, x]),
    "reshaped": lambda x: x.reshape(-1),
}
#: Of which the result has the layout of the operand.
KEEP = ("with itself", "with a row", "softmax")


def plain_of(result: Any) -> Tensor:
    return (
        result.filled(0) if isinstance(result, MaskedTensor) else result.nan_to_num()
    )  # the mean of nothing


def derivatives(y: Tensor, data: Tensor) -> list[Tensor]:
    """Of first and second order; zero for what does not depend on the data."""
    (slope,) = torch.autograd.grad(y.square().sum() + y.sum(), data, create_graph=True)
    if not slope.requires_grad:
        return [slope, torch.zeros_like(slope)]
    (bend,) = torch.autograd.grad((slope * like(slope, *slope.shape)).sum(), data, allow_unused=True)
    return [slope, torch.zeros_like(slope) if bend is None else bend]


class Operations(Conversion):
    @pytest.mark.every
    def test_values_and_derivatives_are_those_of_a_boolean_mask(self, operation: str) -> None:
        run = OPERATIONS[operation]
        for example in self.masks:
            x, data, mask = self.of(example)
            with about(example):
                try:
                    expected = run(mg.masked(data, mask))
                except (IndexError, RuntimeError):
                    with pytest.raises((IndexError, RuntimeError)):
                        run(x)
                    continue
                found = run(x)
                assert type(found) is type(expected)
                assert operation not in KEEP or found.layout == self.layout
                if isinstance(expected, MaskedTensor):
                    assert torch.equal(found.mask, expected.mask)
                numbers = plain_of(found), plain_of(expected)
                torch.testing.assert_close(*numbers, equal_nan=False)
                slopes = [derivatives(y, data) for y in numbers]
                torch.testing.assert_close(*slopes, equal_nan=False)

    def test_a_number_that_is_not_known_leaves_nothing(self, example: str) -> None:
        x, data, mask = self.of(example)
        for known in (False, True):
            number = mg.masked(torch.tensor(3.0, dtype=torch.float64), torch.tensor(known))
            assert_same(x * number, 3 * torch.where(mask, data, 0), mask & known)
            assert_same(number - x * x, 3 - torch.where(mask, data, 0) ** 2, mask & known)

    def test_a_gradient_may_have_any_layout(self, example: str) -> None:
        given = self.of(example)
        x, data, mask = given.x.detach().requires_grad_(), given.data.detach(), given.mask
        for other in OTHERS:
            if self.fits(mask, other):
                with about(other):
                    sent = put_on(self.made(data + 3, mask), other)
                    x.grad = None
                    for _ in range(2):
                        x.backward(sent)  # type: ignore[arg-type]
                    assert x.grad is not None
                    assert x.grad.layout == self.layout
                    assert_same(x.grad, 2 * data + 6, mask)
        part = mask & third(mask)
        (found,) = torch.autograd.grad(x * 2, x, mg.masked(data + 3, part).to_sparse())  # type: ignore[arg-type]
        assert_same(found, torch.where(part, 2 * data + 6, 0), mask)
        with pytest.raises(RuntimeError, match="shape"):
            (x * 2).backward(torch.ones(17))

    @pytest.mark.filterwarnings(
        "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
    )  # of forward mode
    def test_transforms_of_torch_func(self) -> None:
        x = self.of("some").x
        v, w = x._values.detach(), torch.linspace(-1, 1, x._values.numel()).double().reshape(x._values.shape)

        def run(v: Tensor) -> Tensor:
            return MaskedTensor(v, x._pattern).softmax(-1).square().sum()

        (slope,) = torch.autograd.grad(run(leaf := v.clone().requires_grad_()), leaf)
        torch.testing.assert_close(torch.func.grad(run)(v), slope, equal_nan=False)
        torch.testing.assert_close(torch.func.jvp(run, (v,), (w,))[1], (slope * w).sum())
        torch.testing.assert_close(torch.vmap(run)(torch.stack([v, w])), torch.stack([run(v), run(w)]))
