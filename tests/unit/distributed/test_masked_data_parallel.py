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
from maskgrad.masked_tensor.torch_patches.data_parallel import memory_of
from tests.ranks import run_on_ranks


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


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def _unused(rank: int, world_size: int, kind: str, layout: str, ours: bool) -> list[Tensor]:
    module = Two(kind)
    wrap: Any = mg.distributed.prepare if ours else DistributedDataParallel
    model = wrap(module, find_unused_parameters=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model(batch(step, rank, layout), rank == 0)).backward()
        optimizer.step()
        found.append(flat(module))
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
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    expected = []
    for step in range(3):
        optimizer.zero_grad()
        losses = [loss_of(module(batch(step, rank, layout), rank == 0)) for rank in (0, 1)]
        torch.stack(losses).mean().backward()
        optimizer.step()
        expected.append(flat(module))
    for found in run_on_ranks(_unused, 2, kind, layout, ours):
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted)


def encoder() -> nn.Module:
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Linear(3, 4), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(4, 1)
    )


def _jagged(rank: int, world_size: int, ours: bool) -> list[Tensor]:
    module = encoder()
    model: Any = (mg.distributed.prepare if ours else DistributedDataParallel)(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    found = []
    for step in range(2):
        optimizer.zero_grad()
        losses = model(batch(step, rank, "jagged")).square()
        with mg.distributed.global_losses():
            nn.functional.l1_loss(losses, torch.zeros_like(losses)).backward()
        optimizer.step()
        found.append(flat(module))
    return found


@pytest.mark.parametrize("ours", [True, False])
def test_jagged_batches_with_other_numbers_of_tokens(ours: bool) -> None:
    """The mean over the tokens of all ranks, one of which has none in the second step."""
    module = encoder()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    expected = []
    for step in range(2):
        optimizer.zero_grad()
        losses = [module(batch(step, rank)).square() for rank in (0, 1)]
        torch.cat([one.compressed() for one in losses]).mean().backward()
        optimizer.step()
        expected.append(flat(module))
    for found in run_on_ranks(_jagged, 2, ours):
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)


class Measured(nn.Module):
    """A masked buffer, which is another on each rank until rank 0 sends its own, and changes while it trains."""

    def __init__(self, rank: int, trained: bool, expanded: bool) -> None:
        super().__init__()
        values = torch.tensor([[1.0, torch.nan, 3.0]]).repeat(2, 1) + rank
        mask = torch.tensor([[True, False, True]]) if rank == 0 else torch.tensor([[False, True, True]])
        mask = mask.expand(2, 3) if expanded else mask.repeat(2, 1)
        self.register_buffer("measured", mg.masked(values, mask))
        self.linear = nn.Linear(3, 1) if trained else nn.Identity()

    def forward(self, x: Tensor) -> Any:
        self.measured: Any
        if self.training:
            self.measured.add_(1.0)
        return self.linear(x * self.measured)


def _buffers(rank: int, world_size: int, ours: bool, expanded: bool) -> list[Any]:
    module = Measured(rank, True, expanded)
    model: Any = (mg.distributed.prepare if ours else DistributedDataParallel)(module)
    sent = module.measured.tolist()
    model(torch.ones(2, 3)).sum().backward()
    model(torch.ones(2, 3)).sum().backward()
    return [sent, module.measured.tolist(), module.state_dict()["measured"].tolist()]


@pytest.mark.parametrize(("ours", "expanded"), [(False, False), (True, False), (False, True)])
def test_buffers(ours: bool, expanded: bool) -> None:
    for sent, trained, saved in run_on_ranks(_buffers, 2, ours, expanded):
        assert sent == [[1.0, None, 3.0]] * 2
        assert trained == saved == [[3.0, None, 5.0]] * 2


class OnlyTable(Measured):
    def __init__(self, rank: int) -> None:
        super().__init__(rank, False, False)
        self.table = nn.Embedding(4, 3, sparse=True)


def _only_table(rank: int, world_size: int) -> Any:
    module = OnlyTable(rank)
    mg.distributed.prepare(module)
    return module.measured.tolist()


def test_buffers_beside_nothing_dense() -> None:
    assert run_on_ranks(_only_table, 2) == [[[1.0, None, 3.0]] * 2] * 2


def test_a_buffer_of_a_sparse_layout_is_refused() -> None:
    x = mg.masked(torch.ones(2, 2), torch.eye(2).bool())
    assert [t.shape for t in memory_of([torch.ones(3), x])] == [(3,), (2, 2), (2, 2)]
    row = mg.masked(torch.ones(1, 2).expand(3, 2), torch.tensor([True, False]).expand(3, 2))
    assert [t.shape for t in memory_of([row])] == [(2,), (2,)]
    with pytest.raises(UnsupportedOperationError, match=r"layout torch\.sparse_coo .* x\.to_dense\(\)"):
        memory_of([x.to_sparse(layout=torch.sparse_coo)])
