"""Every layout becomes every other one, by the pattern and never by the values, and refuses what it cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import rebuild_stored
from maskgrad.patterns import algebra
from tests.unit.kernels.suite import about
from tests.unit.patterns.suite.copies import filed
from tests.unit.patterns.suite.declaration import OTHERS, Declaration, Parts, assert_same


def put_on(x: MaskedTensor, other: str) -> MaskedTensor:
    """The same on another layout, blocks of one entry each."""
    return x.to_dense() if other == "strided" else x.to_sparse(**OTHERS[other])


class Written:
    """What a file says of a tensor."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild_stored, self.parts


class Conversion(Declaration):
    def fits(self, mask: Tensor, other: str) -> bool:
        if other == "jagged":  # each sequence in its first positions
            known = mask if mask.ndim == 1 + self.dense else self.known(mask)
            return known.ndim > 1 and not bool((known[..., 1:] & ~known[..., :-1]).any())
        return other in ("strided", "coo") or mask.ndim > 1

    def test_it_becomes_every_other_and_comes_back(self, example: str) -> None:
        for other in OTHERS:
            x, data, mask = self.of(example)
            assert x.layout == x._pattern.layout == self.layout
            assert_same(x, data, mask)
            with about(other):
                if not self.fits(mask, other):
                    with pytest.raises(ValueError, match=r"torch\.sparse_coo|first positions|unsqueeze"):
                        put_on(x, other)
                    continue
                y = put_on(x, other)
                assert y.layout == OTHERS[other]["layout"]
                assert_same(y, data, mask)
                assert y.compressed().numel() == mask.sum() == y.num_specified()
                assert put_on(y, other) is y or other == "strided"
                if self.layout != torch.strided:
                    assert_same(self.made(y.filled(7.0), y.mask), data, mask)
                (slope,) = torch.autograd.grad((y**3).sum(), data, create_graph=True)
                assert torch.equal(slope, torch.where(mask, 3 * data**2, 0))
                (bend,) = torch.autograd.grad(slope.sum(), data)
                assert torch.equal(bend, torch.where(mask, 6 * data, 0))

    def test_patterns_are_equal_if_they_specify_the_same_places(self) -> None:
        given, twin = self.of("some"), self.of("some", twin=True)
        assert not torch.equal(given.x, twin.x)
        for other in OTHERS if not self.dense else ():
            for one, is_equal in ((given, True), (twin, False)):
                if self.fits(one.mask, other):
                    assert algebra.equal(given.x._pattern, put_on(one.x, other)._pattern) == is_equal
        with pytest.raises(ValueError, match=r"same shape, found .* and "):
            algebra.equal(given.x._pattern, self.of("no rows").x._pattern)

    @pytest.mark.every
    def test_what_it_cannot_hold_is_refused(self, refusal: str) -> None:
        call, kind, words = self.refused[refusal]
        with pytest.raises(kind, match=words):
            call()

    @pytest.mark.every
    def test_parts_that_contradict_each_other_are_refused(self, damage: str) -> None:
        change: Callable[..., Any]
        change, words = self.damages[damage]
        x = self.of("some").x.detach()
        values, facts = x._values, tuple(x._pattern.facts())
        tensors = [t.clone() for t in x._pattern.tensors()]
        assert torch.equal(rebuild_stored(values, facts, tensors), x)
        with pytest.raises((ValueError, IndexError, TypeError), match=words):
            rebuild_stored(*change(values, facts, tensors))
        with pytest.raises((ValueError, IndexError, TypeError, RuntimeError)):
            filed(Written(change(values, facts, tensors)))
