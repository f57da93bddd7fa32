"""Batches for a DataLoader: which fields are sequences, and that every batch has the same types."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import maskgrad as mg

collate = mg.interop.collate_jagged


class Sample(NamedTuple):
    ids: torch.Tensor
    label: int


def lists(x: mg.MaskedTensor) -> list[Any]:
    return [part.tolist() for part in x.values().split(x.lengths().tolist())]


def test_tensors_of_different_lengths() -> None:
    parts = [torch.randn(n, 2, requires_grad=True) for n in (3, 0, 1)]
    x = collate(parts)
    assert x.layout == torch.jagged
    assert x.shape == (3, 3, 2)
    assert x.lengths().tolist() == [3, 0, 1]
    (x * 2).sum().backward()
    assert all((part.grad == 2).all() for part in parts)
    padded = collate(parts, layout=torch.strided)
    assert padded.layout == torch.strided
    assert padded.mask.equal(x.mask)
    assert padded.filled(0).equal(x.filled(0))


def test_each_kind_of_field() -> None:
    sample = {
        "ids": [1, 2],
        "spans": [[0, 1], [1, 2]],
        "wave": np.ones((3, 2), np.float32),
        "known": [True],
        "text": "ab",
        "label": 3,
        "scale": torch.tensor(2.0),
        "image": torch.zeros(3, 4, 4),
        "more": (torch.ones(2), {"deep": torch.ones(1)}),
    }
    other = sample | {"ids": [4], "spans": [], "wave": np.zeros((1, 2), np.float32), "known": [], "more": (
        torch.ones(0), {"deep": torch.ones(2)})}  # fmt: skip
    batch = collate([sample, other], stack=("image",))
    assert lists(batch["ids"]) == [[1, 2], [4]]
    assert batch["spans"].shape == (2, 2, 2)
    assert lists(batch["spans"]) == [[[0, 1], [1, 2]], []]
    assert batch["wave"].shape == (2, 3, 2)
    assert batch["wave"].dtype == torch.float32
    assert batch["known"].dtype == torch.bool
    assert batch["text"] == ["ab", "ab"]
    assert batch["label"].tolist() == [3, 3]
    assert batch["scale"].tolist() == [2.0, 2.0]
    assert batch["image"].shape == (2, 3, 4, 4)
    assert isinstance(batch["more"], tuple)
    assert lists(batch["more"][0]) == [[1.0, 1.0], []]
    assert lists(batch["more"][1]["deep"]) == [[1.0], [1.0, 1.0]]


def test_tuples_and_named_tuples() -> None:
    batch = collate([(torch.ones(2), 0), (torch.ones(1), 1)])
    assert type(batch) is tuple
    assert batch[0].lengths().tolist() == [2, 1]
    assert batch[1].tolist() == [0, 1]
    named = collate([Sample(torch.ones(2), 0), Sample(torch.ones(1), 1)])
    assert type(named) is Sample
    assert named.ids.lengths().tolist() == [2, 1]
    assert type(collate([[torch.ones(2), torch.tensor(1)]])) is list
    chosen = collate([(torch.ones(2), torch.ones(2))] * 2, sequences=(1,))
    assert type(chosen[0]) is torch.Tensor
    assert chosen[1].layout == torch.jagged


def test_the_sequences_may_be_named() -> None:
    samples = [{"ids": [1, 2], "image": torch.zeros(3, 4)}, {"ids": [3], "image": torch.ones(3, 4)}]
    batch = collate(samples, sequences=("ids",))
    assert batch["ids"].lengths().tolist() == [2, 1]
    assert type(batch["image"]) is torch.Tensor
    assert batch["image"].shape == (2, 3, 4)
    vectors = collate([{"v": [1.0, 2.0]}, {"v": [3.0, 4.0]}], stack=("v",))
    assert vectors["v"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.gpu
def test_pinned_memory() -> None:
    data = [torch.ones(n) for n in (3, 1)]
    (batch,) = DataLoader(data, 2, collate_fn=collate, pin_memory=True)
    assert batch.values().is_pinned()
    assert batch.to("cuda", non_blocking=True).sum().item() == 4


def test_bad_samples() -> None:
    def refused(error: type[Exception], words: str, *args: Any, **kwargs: Any) -> None:
        with pytest.raises(error, match=words):
            collate(*args, **kwargs)

    refused(ValueError, "samples must not be empty", [])
    refused(
        ValueError, "layout must be torch.strided or torch.jagged", [torch.ones(1)], layout=torch.sparse_coo
    )
    refused(
        TypeError,
        "sequences must be a collection of names, found the string 'ids'",
        [{"ids": [1]}],
        sequences="ids",
    )
    refused(TypeError, "stack must be a collection of names", [{"ids": [1]}], stack="ids")
    refused(
        ValueError,
        r"must not be in both .* found \['ids'\]",
        [{"ids": [1]}],
        sequences=("ids",),
        stack=("ids",),
    )
    refused(KeyError, "no field is named 'id'; the samples have 'ids'", [{"ids": [1]}], sequences=("id",))
    refused(ValueError, "a sample must have the field 'b' in each sample", [{"a": 1, "b": 2}, {"a": 1}])
    refused(ValueError, "a sample must have 2 parts in each sample", [(1, 2), (1,)])
    refused(
        ValueError,
        r"field 'x': sequences must have the same features.*\(4,\).*at 1, \(5,\).*stack=",
        [{"x": torch.ones(3, 4)}, {"x": torch.ones(3, 5)}],
    )
    refused(
        TypeError,
        "field 'x': sequences must have one dtype, found torch.float32 and, at 1, torch.int64",
        [{"x": torch.ones(3)}, {"x": torch.ones(3).long()}],
    )
    refused(ValueError, "field 'x': expected sequence of length 1", [{"x": [[1], [2, 3]]}])
    refused(
        TypeError,
        "field 'y' must be a tensor of one dimension or more, or a list of numbers, found int in sample 0",
        [{"y": 1}],
        sequences=("y",),
    )
