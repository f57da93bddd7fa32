"""Third derivatives are right, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import maskgrad as mg

D = torch.float64


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda x: F.layer_norm(x, (4,)), "layer"),
        (lambda x: F.instance_norm(x[:, None]).flatten(1), "batch"),
    ],
    ids=["layer", "instance"],
)
def test_normalizations_of_torch_are_refused(layer: Callable[[Tensor], Tensor], name: str) -> None:
    x = torch.randn(3, 4, dtype=D, requires_grad=True)
    y = layer(x.sin()).square()
    mg.batched_hessian(y, x)  # second derivatives are right
    with pytest.raises(
        NotImplementedError, match=rf"inputs and outputs are connected by {name} normalization, whose "
    ):
        mg.batched_hessian(y, x, create_graph=True)
    z = x.sin()
    mg.batched_hessian((z**3).sum(1) + layer(x.detach()).sum(1), z, create_graph=True)  # is not between
