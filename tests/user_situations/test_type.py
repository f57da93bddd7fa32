"""Situations in which masked data met ordinary code, and what happens now."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, inf, leaf, nan, on, poisoned


def test_tensors_with_different_masks_can_be_added() -> None:
    a, b = poisoned([0.0, 1.0, None, None]), poisoned([0.0, None, 2.0, None])
    assert_entries(a + b, [0.0, None, None, None])
    assert_entries(2 * a + 1, [1.0, 3.0, None, None])
    assert_entries(torch.where(on(0, 1, 0, 0), a, b), [0.0, 1.0, 2.0, None])


def test_a_missing_target_trains_a_network_with_plain_gradients() -> None:
    net = nn.Linear(3, 2)
    prediction = net(torch.ones(1, 3))
    ((prediction - mg.from_nan(torch.tensor([[1.0, nan]]))) ** 2).mean().backward()
    slope = 2 * (prediction[0, 0].item() - 1)
    assert type(net.weight.grad) is torch.Tensor
    assert_entries(net.weight.grad, [[slope] * 3, [0.0] * 3], tol=1e-5)
    assert_entries(net.bias.grad, [slope, 0.0], tol=1e-5)


def test_a_mask_of_floats_is_refused_before_anything_is_computed() -> None:
    for call in (mg.masked, lambda data, m: mg.functional.sum(data, 0, mask=m)):
        with pytest.raises(TypeError, match=r"must be a Boolean torch.Tensor"):
            call(torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]))


def test_the_mask_of_a_tokenizer_is_a_mask_as_it_is() -> None:
    hidden = leaf([[1.0, 2.0], [3.0, nan]], [[5.0, 6.0], [inf, 7.0]])
    attention_mask = torch.tensor([[1, 0], [1, 1]])
    pooled = mg.masked(hidden[..., 0], attention_mask).mean(1)
    assert_entries(pooled, [1.0, inf])
    assert_entries(mg.masked(hidden, attention_mask[..., None]).mean(1), [[1.0, 2.0], [inf, 6.5]])


def test_true_means_specified_and_numpys_true_means_missing() -> None:
    assert_entries(mg.masked(torch.tensor([1.0, 2.0]), on(1, 0)), [1.0, None])
    assert_entries(mg.from_numpy(np.ma.array([1.0, 2.0], mask=[True, False])), [None, 2.0])
