"""Writes: in place on every layout; by index, and through views, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.unit.kernels.suite import about
from tests.unit.patterns.suite.declaration import Declaration, Example, assert_same


def plus_one(x: Any) -> Any:
    x += 1
    return x


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "+=": plus_one,
    "mul_ with dense": lambda x: x.mul_(torch.full(x.shape, 3.0, dtype=x.dtype)),
    "sub_ of itself": lambda x: x.sub_(x * 3),
    "copy_": lambda x: x.copy_(x * 2),
}


class Writing(Declaration):
    def unattached(self, name: str) -> Example:
        """An example that may be written to."""
        _, data, mask = self.of(name)
        return Example(self.made(data.detach().clone(), mask), data.detach(), mask)

    def test_in_place(self, example: str) -> None:
        for name, function in IN_PLACE.items():
            x, data, mask = self.unattached(example)
            with about(name):
                assert function(x) is x
                assert x.layout == self.layout
                assert_same(x, function(torch.where(mask, data, 0)), mask)

    def test_what_is_written_is_in_the_graph(self) -> None:
        x, data, mask = self.of("some")
        y = x * 1
        y.mul_(x)
        y += 1
        (slope,) = torch.autograd.grad(y.sum(), data)
        assert torch.equal(slope, torch.where(mask, 2 * data, 0))

    @pytest.mark.parametrize("index", [slice(1, None), (0, 1), [0, 1], "mask"], ids=str)
    def test_assignment(self, index: Any) -> None:
        x, data, mask = self.unattached("some")
        place = torch.arange(mask.numel()).reshape(mask.shape) % 3 > 0 if index == "mask" else index
        for value in (5.0, mg.unspecified):
            if not self.is_written:
                with pytest.raises(
                    mg.errors.UnsupportedLayoutError, match=rf"{self.layout}.*x\.to_dense\(\)"
                ):
                    x[place] = value
                assert_same(x, data, mask)
                continue
            x[place] = value
            written = torch.zeros_like(mask)
            written[place] = True
            known = mask & ~written if value is mg.unspecified else mask | written
            assert_same(x, torch.where(written, 5.0, torch.where(mask, data, 0)), known)

    def test_views(self) -> None:
        x, data, mask = self.unattached("some")
        turned = x.transpose(0, 1)
        assert turned.layout == (self.turned or self.layout)
        turned.mul_(2)
        if self.is_written:
            assert_same(x, torch.where(mask, 2 * data, 0), mask)
            x[0].fill_(3.0)
            assert_same(x[0], torch.full_like(data[0], 3.0), torch.ones_like(mask[0]))
        else:
            with pytest.raises(mg.errors.UnsupportedLayoutError, match=rf"{self.layout}\. .*x\.to_dense\(\)"):
                x.fill_(3.0)
