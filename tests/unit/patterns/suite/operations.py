"""A few operations of each kind, against plain tensors in which a harmless number takes the place of the garbage.

All operations on all layouts are compared with the Boolean mask by ``tests/laws/test_stored.py``, and that with
oracles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from maskgrad.masked_tensor import MaskedTensor
from tests.unit.kernels.suite import about
from tests.unit.patterns.suite.conversion import Conversion, put_on
from tests.unit.patterns.suite.declaration import OTHERS, Example, assert_same

LOW = -1e30


class Operation(NamedTuple):
    """What is run, a number that does no harm, which results are known, and the same on plain tensors if it differs."""

    run: Callable[[Any], Any]
    harmless: float = 0.0
    known: Callable[[Tensor], Tensor] | None = None
    plain: Callable[[Tensor, Tensor], Tensor] | None = None
    keeps: bool = False

    def expected(self, filled: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        known = mask if self.known is None else self.known(mask)
        return (self.run(filled) if self.plain is None else self.plain(filled, mask)), known


def entrywise(run: Callable[[Any], Any]) -> Operation:
    return Operation(run, keeps=True)


def moved(run: Callable[[Any], Any]) -> Operation:
    return Operation(run, known=run)


def weights(x: Any) -> Tensor:
    return torch.linspace(1, 2, x.shape[-1] * 3, dtype=torch.float64).reshape(-1, 3)


def row(x: Any) -> Tensor:
    return torch.linspace(1, 2, x.shape[-1], dtype=torch.float64)


def third(x: Any) -> Tensor:
    return (torch.arange(x.numel()) % 3 > 0).reshape(x.shape)


OPERATIONS: dict[str, Operation] = {
    "exp": entrywise(lambda x: x.exp()),
    "with itself": entrywise(lambda x: x + x.square()),
    "with a row": entrywise(lambda x: x * row(x) if x.ndim else x),
    "where": Operation(lambda x: torch.where(x > 0, x, 2 * x)),
    "total": Operation(lambda x: x.sum(), known=lambda m: m.any()),
    "mean of all": Operation(lambda x: x.mean(), 0.0, lambda m: m.any(), lambda x, m: x.sum() / m.sum()),
    "sum along the last": Operation(lambda x: x.sum(-1, keepdim=True), known=lambda m: m.any(-1, keepdim=True)),
    "mean": Operation(lambda x: x.mean(0), 0.0, lambda m: m.any(0), lambda x, m: x.sum(0) / m.sum(0).clamp(min=1)),
    "amax": Operation(lambda x: x.amax(-1), LOW, lambda m: m.any(-1)),
    "logsumexp": Operation(lambda x: x.logsumexp(0), LOW, lambda m: m.any(0)),
    "softmax": Operation(lambda x: x.softmax(-1), LOW, keeps=True),
    "argmax": Operation(lambda x: x.argmax(-1), LOW, lambda m: m.any(-1)),
    "loss": Operation(lambda x: F.mse_loss(x, torch.ones(x.shape, dtype=torch.float64)), 0.0, lambda m: m.any(),
                      lambda x, m: torch.where(m, (x - 1) ** 2, 0).sum() / m.sum()),
    "product": Operation(lambda x: x @ weights(x), known=lambda m: m.any(-1, keepdim=True).expand(*m.shape[:-1], 3)),
    "transposed": moved(lambda x: x.transpose(0, 1)),
    "x[0]": moved(lambda x: x[0]),
    "x[1:]": moved(lambda x: x[1:]),
    "x[:, ::2]": moved(lambda x: x[:, ::2]),
    "x[:, None]": moved(lambda x: x[:, None]),
    "x[tensor]": moved(lambda x: x[torch.tensor([-1, 0])]),
    "x[mask]": moved(lambda x: x[third(x)] if x.ndim else x),
    "x[9]": moved(lambda x: x[9]),
    "x[0, 0, 0, 0]": moved(lambda x: x[0, 0, 0, 0]),
    "joined": moved(lambda x: torch.cat([x, x])),
    "reshaped": moved(lambda x: x.reshape(-1)),
}  # fmt: skip


def plain_of(result: Any, known: Tensor) -> Tensor:
    return result.filled(0) if isinstance(result, MaskedTensor) else torch.where(known, result, 0)


def derivatives(y: Tensor, data: Tensor) -> list[Tensor]:
    """Of first and second order; zero for what does not depend on the data."""
    (slope,) = torch.autograd.grad(y.square().sum() + y.sum(), data, create_graph=True)
    if not slope.requires_grad:
        return [slope, torch.zeros_like(slope)]
    total = (slope * torch.linspace(1, 2, slope.numel()).reshape(slope.shape)).sum()
    (bend,) = torch.autograd.grad(total, data, allow_unused=True)
    return [slope, torch.zeros_like(slope) if bend is None else bend]


class Operations(Conversion):
    @pytest.mark.every
    def test_values_and_derivatives_are_those_of_plain_tensors(self, operation: str) -> None:
        for example in self.masks:
            with about(example):
                self.agrees(OPERATIONS[operation], self.of(example))

    def agrees(self, this: Operation, given: Example) -> None:
        try:
            values, known = this.expected(given.filled(this.harmless), given.mask)
        except (IndexError, RuntimeError):
            with pytest.raises((IndexError, RuntimeError)):
                this.run(given.x)
            return
        found = this.run(given.x)
        if isinstance(found, MaskedTensor):
            assert_same(found, values, known)
            assert not this.keeps or found.layout == self.layout
        else:
            assert found.shape == ()
            torch.testing.assert_close(plain_of(found, known), plain_of(values, known))
        if values.requires_grad:
            slopes = [derivatives(plain_of(y, known), given.data) for y in (found, values)]
            for ours, theirs in zip(*slopes, strict=True):
                torch.testing.assert_close(ours, torch.where(given.mask, theirs, 0), equal_nan=False)

    def test_layouts_meet(self, example: str) -> None:
        for other in OTHERS:
            x, data, mask = self.of(example)
            if self.fits(mask, other):
                y = put_on(x.detach() + 1, other)
                layouts = {x.layout, y.layout}
                if torch.jagged in layouts and layouts - {torch.jagged, torch.strided}:
                    with pytest.raises(UnsupportedLayoutError, match=r"x\.to_dense\(\)"):
                        x * y
                    continue
                pairs = ((x * y, data * (data + 1)), (y - x, 1 + 0 * data), (torch.maximum(x, y), data + 1))
                with about(other):
                    for result, expected in pairs:
                        assert_same(result, torch.where(mask, expected, 0), mask)
                    (slope,) = torch.autograd.grad((x * y).sum(), data)
                    assert torch.equal(slope, torch.where(mask, data + 1, 0))

    def test_a_number_that_is_not_known_leaves_nothing(self, example: str) -> None:
        x, data, mask = self.of(example)
        for known in (False, True):
            number = mg.masked(torch.tensor(3.0, dtype=torch.float64), torch.tensor(known))
            assert_same(x * number, 3 * torch.where(mask, data, 0), mask & known)
            assert_same(number - x * x, 3 - torch.where(mask, data, 0) ** 2, mask & known)

    def test_a_leaf_accumulates_in_its_own_pattern(self, example: str) -> None:
        x, data, mask = self.of(example)
        x = x.detach().requires_grad_()
        for _ in range(2):
            (x * x).sum().backward()
        assert x.grad is not None
        assert x.grad.layout == self.layout
        assert_same(x.grad, 4 * data.detach(), mask)
        (x * 2).backward(torch.ones(mask.shape, dtype=torch.float64))
        assert_same(x.grad, 4 * data.detach() + 2, mask)

    def test_a_gradient_may_have_any_layout(self, example: str) -> None:
        given = self.of(example)
        x, data, mask = given.x.detach().requires_grad_(), given.data.detach(), given.mask
        for other in OTHERS:
            if self.fits(mask, other):
                with about(other):
                    sent = put_on(self.made(data + 3, mask), other)
                    (found,) = torch.autograd.grad(x * 2, x, sent)  # type: ignore[arg-type]
                    assert found.layout == self.layout
                    assert_same(found, 2 * data + 6, mask)
                    x.grad = None
                    (x * 2).backward(sent)  # type: ignore[arg-type]
                    assert x.grad is not None
                    assert_same(x.grad, 2 * data + 6, mask)
        part = mask & third(mask)
        (found,) = torch.autograd.grad(x * 2, x, mg.masked(data + 3, part).to_sparse())  # type: ignore[arg-type]
        assert_same(found, torch.where(part, 2 * data + 6, 0), mask)
        with pytest.raises(RuntimeError, match="shape"):
            (x * 2).backward(torch.ones(17))
