"""Copies and files: pattern and values travel together, and files are not believed."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.masked_tensor import tensor as masked_tensor
from tests.poison import assert_entries, on, poisoned


def through_torch_load(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_shallow_copy_is_the_same_memory() -> None:
    x = poisoned([1.0, None])
    y = copy.copy(x)
    y += 1
    y[1] = 7.0
    assert_entries(x, [2.0, 7.0])
    assert_entries(y, [2.0, 7.0])


def test_the_value_that_removes_entries_survives() -> None:
    assert pickle.loads(pickle.dumps(mg.unspecified)) is mg.unspecified
    assert copy.deepcopy(mg.unspecified) is mg.unspecified
    assert repr(mg.unspecified) == "maskgrad.unspecified"


class Damaged:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return masked_tensor.rebuild, self.parts


@pytest.mark.parametrize("load", [lambda x: pickle.loads(pickle.dumps(x)), through_torch_load])
@pytest.mark.parametrize(
    ("parts", "kind", "words"),
    [
        (
            (torch.zeros(2), torch.ones(2)),
            TypeError,
            "mask must be a Boolean torch.Tensor, .*found torch.float32",
        ),
        ((torch.zeros(2), torch.ones(3).bool()), ValueError, "mask must have as many dimensions"),
        ((torch.zeros(2), "mask"), TypeError, "mask must be a Boolean torch.Tensor"),
        (([1.0], on(1)), TypeError, "values of a stored MaskedTensor must be a strided tensor, found list"),
    ],
)
def test_damaged_files_are_refused(load: Any, parts: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        load(Damaged(*parts))
