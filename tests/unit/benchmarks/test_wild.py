"""The doctor on other people's models: how they are built, an oracle that sees leaks and nothing else, and the page."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.wild.batches import Samples
from benchmarks.wild.examined import row_of
from benchmarks.wild.oracle import Case, judge
from benchmarks.wild.page import verdict


class Pooled(nn.Module):
    """A mean over positions, real or padded."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.embed, self.head = how, nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        real, hidden = mask.to(self.head.weight.dtype)[..., None], self.embed(ids)
        if self.how == "padding in the sum":
            return self.head(hidden.sum(1) / real.sum(1))
        width = hidden.shape[1]
        if self.how == "whole frames only":
            hidden, real = hidden[:, : width - width % 2], real[:, : width - width % 2]
        if self.how == "asks whether there is padding" and not bool(real.all()):
            hidden = 2 * hidden
        size = width if self.how == "padding in the count" else real.sum(1)
        return self.head((hidden * real).sum(1) / size)


def case(how: str) -> Case:
    torch.manual_seed(0)
    rows = [{"ids": torch.randint(1, 9, (size,))} for size in (6, 3)]
    samples = Samples(rows, {"ids": 0}, "mask")
    return Case(how, Pooled(how), samples, lambda model, batch: {"pooled": model(**batch)}, "none")


@pytest.mark.parametrize(
    ("how", "leaks"),
    [
        ("right", []),
        ("padding in the sum", ["rewritten", "longer", "alone"]),
        ("padding in the count", ["longer", "alone"]),
        ("whole frames only", ["longer", "alone"]),
        ("asks whether there is padding", ["longer", "alone"]),
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_oracle_sees_leaks_and_nothing_else(how: str, leaks: list[str], side: str) -> None:
    assert judge(case(how), side, training=False).leaks() == leaks
    assert verdict(row_of(case(how), side, training=False)) == ("found" if leaks else "clean")
