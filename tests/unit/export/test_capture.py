"""Models as they are: modes restored, torch.export with MaskedTensors, what is to blame."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from maskgrad.export.capture import quiet
from tests.unit.export.holes import holey


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Any, y: Any, stored: Any) -> dict[str, Any]:
        return {"a": self.layer(x).softmax(1), "b": [y.std(0), x.amax(1)], "c": stored * 2}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_torch_export_takes_and_gives_masked_tensors(layout: torch.layout, strict: bool) -> None:
    model, dim, file, stored = Model(), torch.export.Dim("rows"), io.BytesIO(), holey(3, 4).to_sparse(layout)
    both = [{0: dim}, {0: dim}]
    shapes = (both, both, [None for _ in torch.utils._pytree.tree_leaves(stored)])
    with quiet():
        program = torch.export.export(
            model, (holey(3, 4), holey(3, 4), stored), dynamic_shapes=shapes, strict=strict
        )
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
    for x, y in (
        (holey(5, 4), holey(5, 4)),
        (holey(2, 4), mg.masked(torch.ones(2, 4), torch.zeros(2, 4) > 0)),
    ):
        found, expected = loaded(x, y, stored), model(x, y, stored)
        for one, other in zip([found["a"], *found["b"]], [expected["a"], *expected["b"]], strict=True):
            assert isinstance(one, mg.MaskedTensor)
            assert torch.equal(one.mask, other.mask)
            torch.testing.assert_close(one.filled(0.0), other.filled(0.0), equal_nan=True)
        assert (found["c"].layout, found["c"].tolist()) == (layout, expected["c"].tolist())


REDUCED: dict[str, Any] = {
    **{
        name: lambda x, name=name: getattr(x, name)(1)
        for name in ("softmax", "sum", "mean", "var", "logsumexp")
    },
    "mse_loss": lambda x: nn.functional.mse_loss(x, torch.zeros(2, 3)),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", REDUCED)
def test_that_the_mask_of_an_example_repeats_is_not_true_of_others(name: str, strict: bool) -> None:
    class Reduced(nn.Module):
        def forward(self, x: Any) -> Any:
            return REDUCED[name](x)

    x = mg.masked(torch.rand(2, 3), torch.tensor([[True, True, False], [True, False, False]]))
    expected = REDUCED[name](x)
    for example in (mg.masked(torch.ones(2, 3)), mg.from_lengths(torch.ones(2, 3), torch.tensor([3, 1]))):
        with quiet():
            found = torch.export.export(Reduced(), (example,), strict=strict).module()(x)
        torch.testing.assert_close(
            *(t.filled(0.0) if isinstance(t, mg.MaskedTensor) else t for t in (found, expected))
        )


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_that_an_example_of_a_mask_repeats_is_not_true_of_others(dtype: torch.dtype) -> None:
    class Inside(nn.Module):
        def forward(self, values: Any, mask: Any) -> Any:
            of_tensors = mg.functional.mean(values, 1, mask=mask)
            return [reduce(mg.masked(values, mask)) for reduce in REDUCED.values()], of_tensors

    values, mask = torch.rand(2, 3), torch.tensor([[1, 1, 0], [1, 0, 0]]).to(dtype)
    for example in (torch.ones((), dtype=dtype), torch.tensor([[1], [1]]).to(dtype)):
        with quiet():
            found = torch.export.export(Inside(), (torch.rand(2, 3), example.expand(2, 3))).module()(
                values, mask
            )
        for one, other in zip(
            *([*part, mean] for part, mean in (found, Inside()(values, mask))), strict=True
        ):
            torch.testing.assert_close(
                *(t.filled(0.0) if isinstance(t, mg.MaskedTensor) else t for t in (one, other))
            )
