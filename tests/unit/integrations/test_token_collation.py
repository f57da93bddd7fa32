"""Tokens as MaskedTensors, and as models of transformers want them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskgrad as mg
from maskgrad.integrations.transformers.collation import plain_tokens

SAMPLES = [
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "weight": 0.5},
    {"input_ids": [8], "labels": [8], "weight": 1.0},
    {"input_ids": [], "labels": [], "weight": 0.0},
]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_fields_with_something_for_each_token_are_masked(layout: torch.layout) -> None:
    batch = mg.integrations.TokenCollator(layout=layout)(SAMPLES)
    assert batch["input_ids"].layout == layout
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, None, None], [None, None, None]]
    assert batch["labels"].tolist() == [[None, 6, 7], [8, None, None], [None, None, None]]
    assert batch["weight"].tolist() == [0.5, 1.0, 0.0]
    assert (
        mg.integrations.TokenCollator(layout=layout)(SAMPLES[1:])["labels"].layout == layout
    )  # nothing ignored


def test_padding_that_is_there_already_is_left_out() -> None:
    padded = [
        {
            "input_ids": np.array([0, 5, 6]),
            "attention_mask": np.array([0, 1, 1]),
            "labels": np.array([-100, 1, 2]),
        },
        {"input_ids": [7, 0, 0], "attention_mask": [1, 0, 0], "labels": [3, -100, -100]},
    ]
    batch = mg.integrations.TokenCollator()(padded)
    assert set(batch) == {"input_ids", "labels"}
    assert batch["input_ids"].tolist() == [[5, 6], [7, None]]
    assert batch["labels"].tolist() == [[1, 2], [3, None]]


def test_an_empty_list_has_the_dtype_of_the_others() -> None:
    batch = mg.integrations.TokenCollator()(
        [{"input_ids": [1, 2], "scores": [0.5, 0.25]}, {"input_ids": [], "scores": []}]
    )
    assert batch["scores"].tolist() == [[0.5, 0.25], [None, None]]


def test_labels_of_whole_samples_stay_plain() -> None:
    batch = mg.integrations.TokenCollator()(
        [{"input_ids": [1, 2], "labels": 1}, {"input_ids": [3], "labels": 0}]
    )
    assert isinstance(batch["labels"], torch.Tensor)
    assert batch["labels"].tolist() == [1, 0]
    with pytest.raises(KeyError, match="each sample must have 'input_ids', found 'labels'"):
        mg.integrations.TokenCollator()([{"labels": 1}])


def test_a_batch_for_a_model_of_transformers() -> None:
    batch = plain_tokens(mg.integrations.TokenCollator()(SAMPLES), padding=9)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9], [9, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, -100, -100], [-100, -100, -100]]
    with pytest.raises(ValueError, match=r"'labels' are masked floats.*compute_loss_func"):
        plain_tokens({"labels": mg.masked(torch.ones(2))}, 0)
