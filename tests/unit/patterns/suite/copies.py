"""Copies and files: pattern and values travel together."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor import MaskedTensor
from tests.unit.kernels.suite import about
from tests.unit.patterns.suite.declaration import Declaration, assert_same


def filed(thing: Any) -> Any:
    """As it comes out of a file."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through_a_tree(x: MaskedTensor) -> MaskedTensor:
    leaves, spec = pytree.tree_flatten(x)
    again: MaskedTensor = pytree.tree_unflatten(leaves, spec)
    return again


#: Each way to copy, and whether the copy has memory of its own.
COPIES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "copy": (copy.copy, False),
    "detach": (lambda x: x.detach(), False),
    "pytree": (through_a_tree, False),
    "deepcopy": (copy.deepcopy, True),
    "clone": (lambda x: x.detach().clone(), True),
    "pickle": (lambda x: pickle.loads(pickle.dumps(x)), True),
    "file": (filed, True),
}
OF_FILES = ("pickle", "file")


class Copies(Declaration):
    @pytest.mark.parametrize("way", COPIES)
    def test_copies(self, way: str) -> None:
        copied, apart = COPIES[way]
        for example in self.masks:
            _, data, mask = self.of(example)
            x = self.made(data.detach().clone(), mask).requires_grad_()
            with about(example):
                if way in OF_FILES and not self.is_filed:
                    with pytest.raises(TypeError, match=r"add one in patterns/checks\.py"):
                        copied(x)
                    continue
                again = copied(x)
                assert type(again) is MaskedTensor
                assert again is not x
                assert again.layout == self.layout
                assert again._pattern.facts() == x._pattern.facts()
                assert_same(again, data, mask)
                assert again.is_leaf
                assert again.requires_grad == (x.requires_grad and way not in ("detach", "clone"))
                with torch.no_grad():
                    again._values.mul_(2)
                assert_same(x.detach(), data if apart else 2 * data, mask)

    def test_one_object_stays_one(self) -> None:
        x = self.of("some").x.detach()
        first, second = copy.deepcopy([x, x])
        assert first is second
        with pytest.raises(RuntimeError, match="deepcopy protocol"):  # as in torch
            copy.deepcopy(x.requires_grad_() * 2)
