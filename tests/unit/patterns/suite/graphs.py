"""Compiled into one graph, once for all patterns of as many entries; under vmap, torch.func and forward mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns import StoredPattern
from tests.unit.kernels.suite import about
from tests.unit.patterns.suite.declaration import Declaration, Example, assert_same
from tests.unit.patterns.suite.operations import OPERATIONS, Operation, plain_of


def program(x: Any, w: Tensor) -> list[Any]:
    """Some of each kind; more are compiled in ``tests/conformance/test_compiled_layouts.py``."""
    y = (2 * x * w - x).exp()
    return [y, y.sum(0), x.to_dense() * w, y.filled(1.0), y.sum() + w]


class Graphs(Declaration):
    @pytest.mark.compiled(of="file")
    def test_one_graph_for_patterns_of_as_many_entries(self) -> None:
        fast = torch.compile(program, backend="eager", fullgraph=True)
        with mg.count_recompiles() as compilations:
            for twin in (False, True):
                x = self.of("some", twin=twin).x.detach().requires_grad_()
                w = torch.randn(x.shape, dtype=torch.float64, requires_grad=True)
                slopes = []
                for run in (fast, program):
                    plain = [y.filled(0.0) if isinstance(y, MaskedTensor) else y for y in run(x, w)]
                    total = sum(y.square().sum() for y in plain)
                    slopes.append([*plain, *torch.autograd.grad(total, [x._values, w])])
                torch.testing.assert_close(*slopes)
        assert compilations.number == 1, compilations.reasons

    @pytest.mark.filterwarnings(
        "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
    )  # torch's forward mode
    @pytest.mark.parametrize(
        "name", ["with itself", "sum along the last", "softmax", "amax", "logsumexp", "loss"]
    )
    def test_transforms(self, name: str) -> None:
        for example in ("some", "all"):
            with about(example):
                self.transform(OPERATIONS[name], self.of(example))

    def transform(self, this: Operation, given: Example) -> None:
        pattern = given.x._pattern
        data, direction = given.data.detach(), torch.randn_like(given.data)

        def ours(d: Tensor) -> Tensor:
            if isinstance(pattern, StoredPattern):
                x = MaskedTensor(pattern.gathered(d[tuple(pattern.coordinates())]), pattern)
            else:
                x = mg.masked(d, given.mask)
            return plain_of(this.run(x), this.expected(given.data, given.mask)[1])

        def theirs(d: Tensor) -> Tensor:
            return plain_of(*this.expected(torch.where(given.mask, d, this.harmless), given.mask))

        for transform in (
            lambda f: torch.func.jvp(f, (data,), (direction,))[1],
            lambda f: torch.func.grad(lambda v: f(v).sum())(data),
            lambda f: torch.vmap(f)(torch.stack([data, direction])),
        ):
            torch.testing.assert_close(transform(ours), transform(theirs), equal_nan=False)

    def test_only_a_mask_is_mapped_over(self) -> None:
        x, data, mask = self.of("some")
        if self.layout == torch.strided:
            assert_same(torch.vmap(lambda y: y * 2)(x), 2 * data, mask)
            return
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            torch.vmap(lambda y: y * 2)(x)
