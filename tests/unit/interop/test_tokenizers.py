"""Tokenized texts: padding on either side, in each form in which a tokenizer returns it."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

import maskgrad as mg

TEXTS = [[5, 6, 7], [8], [], [9, 4]]


def padded(side: str, longest: int = 4) -> dict[str, Any]:
    fields: dict[str, Any] = {"input_ids": [], "attention_mask": [], "token_type_ids": []}
    for text in TEXTS:
        padding = [0] * (longest - len(text))
        for name, part in (
            ("input_ids", text),
            ("attention_mask", [1] * len(text)),
            ("token_type_ids", [i % 2 for i in text]),
        ):
            fields[name].append([*part, *padding] if side == "right" else [*padding, *part])
    return fields


def lists(x: mg.MaskedTensor) -> list[Any]:
    return [part.tolist() for part in x.values().split(x.lengths().tolist())]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("form", [list, torch.tensor, np.array], ids=["lists", "tensors", "arrays"])
@pytest.mark.parametrize("kind", [dict, UserDict])
def test_padding_on_either_side(side: str, form: Any, kind: Any) -> None:
    encoding = kind({name: form(part) for name, part in padded(side).items()})
    found = mg.interop.from_tokenizer(encoding)
    assert list(found) == ["input_ids", "token_type_ids"]
    assert found["input_ids"].layout == torch.jagged
    assert found["input_ids"].shape == (4, 4)
    assert lists(found["input_ids"]) == TEXTS
    assert lists(found["token_type_ids"]) == [[i % 2 for i in text] for text in TEXTS]
    assert found["input_ids"].offsets() is found["token_type_ids"].offsets()
    strided = mg.interop.from_tokenizer(encoding, layout=torch.strided)["input_ids"]
    assert strided.layout == torch.strided
    assert strided.tolist() == [[*text, *[None] * (4 - len(text))] for text in TEXTS]


@pytest.mark.parametrize("mask", [False, True])
def test_lists_without_padding(mask: bool) -> None:
    encoding: dict[str, Any] = {
        "input_ids": TEXTS,
        "offset_mapping": [[(i, i + 1) for i in text] for text in TEXTS],
    }
    if mask:
        encoding["attention_mask"] = [[1] * len(text) for text in TEXTS]
    found = mg.interop.from_tokenizer(encoding)
    assert lists(found["input_ids"]) == TEXTS
    assert found["input_ids"].shape == (4, 3)
    assert found["offset_mapping"].shape == (4, 3, 2)
    assert found["offset_mapping"].values()[:, 0].equal(found["input_ids"].values())


def test_other_fields() -> None:
    encoding = {"input_ids": torch.tensor([[5, 6], [7, 0]]), "attention_mask": torch.tensor([[1, 1], [1, 0]])}
    encoding |= {"labels": torch.tensor([[1, 2], [3, -100]]), "length": [2, 1]}
    found = mg.interop.from_tokenizer(encoding)
    assert found["labels"] is encoding["labels"]
    assert found["length"] == [2, 1]
    found = mg.interop.from_tokenizer(encoding, sequences=("labels",))
    assert lists(found["labels"]) == [[1, 2], [3]]


@pytest.mark.parametrize("texts", [[], [[]], [[], []]])
def test_nothing(texts: list[list[int]]) -> None:
    for encoding in ({"input_ids": texts}, {"input_ids": texts, "attention_mask": texts}):
        found = mg.interop.from_tokenizer(encoding)["input_ids"]
        assert found.shape == (len(texts), 0)
        assert found.dtype == torch.int64


def test_what_is_refused() -> None:
    def refused(error: type[Exception], words: str, encoding: Any, **kwargs: Any) -> None:
        with pytest.raises(error, match=words):
            mg.interop.from_tokenizer(encoding, **kwargs)

    ids = torch.tensor([[5, 6, 7], [8, 0, 0]])
    refused(TypeError, r"encoding must be a mapping with 'input_ids', found list", [[1]])
    refused(TypeError, r"those of a list of texts.*tokenizer\(\[text\]\)", {"input_ids": [1, 2]})
    refused(TypeError, r"those of a list of texts", {"input_ids": torch.tensor([1, 2])})
    refused(KeyError, r"encoding must have 'input_ids', found 'ids'", {"ids": ids})
    refused(
        KeyError,
        r"encoding must have 'labels', found 'input_ids'",
        {"input_ids": [[1]]},
        sequences=("labels",),
    )
    refused(
        TypeError, r"found the string 'labels'", {"input_ids": [[1]], "labels": [[1]]}, sequences="labels"
    )
    refused(
        ValueError,
        r"'attention_mask' if input_ids is a tensor.*return_attention_mask=True",
        {"input_ids": ids},
    )
    gap = torch.tensor([[1, 1, 1], [1, 0, 1]])
    refused(ValueError, r"attention_mask of text 1 has a gap", {"input_ids": ids, "attention_mask": gap})
    refused(
        ValueError,
        r"must contain 0 and 1, found \[1, 2\]",
        {"input_ids": ids, "attention_mask": gap.clamp(min=1) + (gap == 0)},
    )
    refused(
        ValueError,
        r"attention_mask must have the shape of input_ids",
        {"input_ids": ids, "attention_mask": gap[:, :2]},
    )
    refused(
        ValueError,
        r"lists of different lengths must be 1 everywhere, found \[0, 1\]",
        {"input_ids": [[1, 2], [3]], "attention_mask": [[1, 0], [1]]},
    )
    refused(
        ValueError,
        r"labels must have one entry for each of input_ids, \[3, 3\] in each text, found \[None, None\]",
        {"input_ids": ids, "attention_mask": ids != 0, "labels": torch.tensor([0, 1])},
        sequences=("labels",),
    )
    refused(ValueError, r"layout must be", {"input_ids": [[1]]}, layout=torch.sparse_coo)
