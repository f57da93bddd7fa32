"""MaskedTensors through DistributedDataParallel itself, and jagged batches: as one process on the joint batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import check, trained


@dataclasses.dataclass
class Answer:
    scores: Any
    rest: Any


class Two(nn.Module):
    """Uses the second layer on one rank only, and the third nowhere."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)
        self.other, self.kind = nn.Linear(3, 2), kind

    def forward(self, x: Any, second: bool) -> Any:
        hidden = self.first(x).tanh()
        out = (self.second if second else self.other)(hidden)
        return {"alone": out, "list": [out], "dict": {"a": (out, 1)}, "dataclass": Answer(out, None)}[
            self.kind
        ]


def batch(step: int, rank: int, layout: str = "strided") -> Any:
    """Another number of rows on each rank; the second has a sequence of length 0, and none but such in step 1."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.randn(2 + rank, 4, 3, generator=generator)
    lengths = torch.tensor([[4, 1], [3, 0, 2]][rank]) * int(step != 1 or rank == 0)
    mask = (torch.arange(4) < lengths[:, None])[..., None].expand_as(x)
    if layout == "jagged":
        return mg.from_lengths(torch.where(mask, x, 0.0), lengths, layout=torch.jagged)
    return mg.masked(torch.where(mask, x, torch.nan), mask)


def loss_of(out: Any) -> Tensor:
    while not isinstance(out, mg.MaskedTensor):
        parts = [out.scores] if isinstance(out, Answer) else out
        out = next(iter(parts.values())) if isinstance(parts, dict) else parts[0]
    return out.square().sum()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05)


def _unused(rank: int, world_size: int, kind: str, layout: str, ours: bool) -> list[Tensor]:
    module = Two(kind)
    wrap: Any = mg.distributed.prepare if ours else DistributedDataParallel
    model = wrap(module, find_unused_parameters=True)
    found = trained(
        module, [sgd(module)], lambda step: loss_of(model(batch(step, rank, layout), rank == 0)), 3
    )
    assert module.third.weight.grad is None
    return found


@pytest.mark.parametrize(
    ("kind", "layout", "ours"),
    [
        ("alone", "strided", False),
        ("list", "jagged", False),
        ("dict", "strided", False),
        ("dataclass", "jagged", False),
        ("alone", "jagged", True),
        ("dict", "strided", True),
    ],
)
def test_unused_parameters(kind: str, layout: str, ours: bool) -> None:
    module = Two(kind)

    def loss(step: int) -> Tensor:
        return torch.stack([loss_of(module(batch(step, rank, layout), rank == 0)) for rank in (0, 1)]).mean()

    check(run_on_ranks(_unused, 2, kind, layout, ours), trained(module, [sgd(module)], loss, 3))


def encoder() -> nn.Module:
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Linear(3, 4), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(4, 1)
    )


def _jagged(rank: int, world_size: int, ours: bool) -> list[Tensor]:
    module = encoder()
    model: Any = (mg.distributed.prepare if ours else DistributedDataParallel)(module)

    def loss(step: int) -> Tensor:
        losses = model(batch(step, rank, "jagged")).square()
        with mg.distributed.global_losses():
            return nn.functional.l1_loss(losses, torch.zeros_like(losses))

    return trained(module, [sgd(module)], loss, 2)


@pytest.mark.parametrize("ours", [True, False])
def test_jagged_batches_with_other_numbers_of_tokens(ours: bool) -> None:
    """The mean over the tokens of all ranks, one of which has none in the second step."""
    module = encoder()

    def loss(step: int) -> Tensor:
        return torch.cat([module(batch(step, rank)).square().compressed() for rank in (0, 1)]).mean()

    check(run_on_ranks(_jagged, 2, ours), trained(module, [sgd(module)], loss, 2))


def _masked_buffer(rank: int, world_size: int, ours: bool, kind: type[nn.Module]) -> str:
    module = nn.Sequential(kind(3, 2))
    module.register_buffer("measured", mg.masked(torch.ones(2), torch.tensor([True, False])))
    try:
        (mg.distributed.prepare if ours else DistributedDataParallel)(module)
    except UnsupportedOperationError as error:
        return str(error)
    return ""


class Table(nn.Embedding):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width, sparse=True)


@pytest.mark.parametrize(("ours", "kind"), [(False, nn.Linear), (True, nn.Linear), (True, Table)])
def test_masked_buffers_are_refused(ours: bool, kind: type[nn.Module]) -> None:
    for words in run_on_ranks(_masked_buffer, 2, ours, kind):
        assert "self.register_buffer('mask', x.mask)" in words
