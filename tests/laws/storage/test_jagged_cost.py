"""What runs on rows makes no padded batch: it costs what the specified positions cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.jagged import JaggedPattern

#: By name, on (B, T, 4) and another batch of the same lengths.
ON_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y, "multiply by a plain one": lambda x, y: x * torch.rand(4, dtype=x.dtype),
    "exp": lambda x, y: x.exp(), "linear": lambda x, y: F.linear(x, torch.rand(3, 4, dtype=x.dtype)),
    "matmul": lambda x, y: x @ torch.rand(4, 3, dtype=x.dtype), "layer_norm": lambda x, y: F.layer_norm(x, (4,)),
    "rms_norm": lambda x, y: F.rms_norm(x, (4,)), "dropout": lambda x, y: F.dropout(x, 0.5),
    "softmax of features": lambda x, y: x.softmax(-1), "sum of features": lambda x, y: x.sum(-1),
    "var of features": lambda x, y: x.var(-1), "argmax of features": lambda x, y: x.argmax(-1),
    "sort of features": lambda x, y: x.sort(-1)[0], "topk of features": lambda x, y: x.topk(2, -1)[0],
    "mean of sequences": lambda x, y: x.mean(1), "amax of sequences": lambda x, y: x.amax(1),
    "logsumexp of sequences": lambda x, y: x.logsumexp(1), "softmax of sequences": lambda x, y: x.softmax(1),
    "last": lambda x, y: x.last(), "one position": lambda x, y: x[:, 3], "positions": lambda x, y: x[:, 1:],
    "sequences": lambda x, y: x[1:], "features": lambda x, y: x[..., 1:],
    "transpose": lambda x, y: x.transpose(0, 1).mT,
    "heads": lambda x, y: x.unflatten(-1, (2, 2)).transpose(1, 2),
    "cat": lambda x, y: torch.cat([x, y], -1),
    "cat of sequences": lambda x, y: torch.cat([x, y]), "stack of features": lambda x, y: torch.stack([x, y], -1),
    "where": lambda x, y: torch.where(x > y, x, y), "mse_loss": F.mse_loss,
    "cross_entropy": lambda x, y: F.cross_entropy(x.transpose(1, 2), y.argmax(-1)),
    "prelu": lambda x, y: F.prelu(x, torch.ones(1, dtype=x.dtype)), "mean of everything": lambda x, y: x.mean(),
    "embedding": lambda x, y: F.embedding(x.argmax(-1), torch.rand(4, 5, dtype=x.dtype)),
    "last positions": lambda x, y: x.last(2), "drop_last": lambda x, y: x.drop_last(1) * y.drop_first(1),
    "of other lengths": lambda x, y: x[:, :-1] * y[:, 1:],
}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("name", ON_ROWS)
def test_what_runs_on_rows_makes_no_padded_batch(name: str) -> None:
    offsets = torch.tensor([0, 3, 3, 8, 10])
    x, y = (mg.from_offsets(torch.rand(10, 4, dtype=torch.float64), offsets).requires_grad_() for _ in "xy")
    spread_out = AssertionError("a padded batch was made")
    with (
        mock.patch("maskgrad.semantics.stored.entries._padded", side_effect=spread_out),
        mock.patch.object(JaggedPattern, "mask", property(mock.Mock(side_effect=spread_out))),
    ):
        result = ON_ROWS[name](x, y)
        values: Tensor = result._values if isinstance(result, MaskedTensor) else result
        if values.requires_grad:
            torch.autograd.grad(values, x._values, torch.ones_like(values), create_graph=True)


def test_the_guard_can_fail() -> None:
    x = mg.from_offsets(torch.rand(3, 4), torch.tensor([0, 1, 3]))
    with (
        mock.patch("maskgrad.semantics.stored.entries._padded", side_effect=AssertionError),
        pytest.raises(AssertionError),
    ):
        x.flip(1)
