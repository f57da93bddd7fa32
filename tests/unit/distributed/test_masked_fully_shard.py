"""MaskedTensors into, between and out of layers that are sharded, beside a table: as one process on the joint batch."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import check, state, trained

fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this PyTorch has no fully_shard")


@dataclasses.dataclass
class Answer:
    scores: Any
    name: str = "answer"


class Pair(NamedTuple):
    first: Any
    second: Any


class Block(nn.Module):
    """Takes and returns MaskedTensors, in a container of the given kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(4, 4), kind

    def forward(self, given: Any, extra: Any = None) -> Any:
        if isinstance(given, dict):
            given = given["x"]
        elif isinstance(given, Answer):
            given = given.scores
        elif isinstance(given, (tuple, list)):
            given = given[0]
        out = self.linear(given).tanh()
        if extra is not None:
            out = out + extra
        kinds: dict[str, Callable[[], Any]] = {
            "plain": lambda: out,
            "dict": lambda: {"x": out, "n": 1},
            "list": lambda: [out, None],
            "tuple": lambda: (out,),
            "namedtuple": lambda: Pair(out, 2),
            "dataclass": lambda: Answer(out),
        }
        return kinds[self.kind]()


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Embedding(9, 4, sparse=True)
        self.blocks = nn.ModuleList([Block(kind), Block(kind), Block("plain")])

    def forward(self, words: mg.MaskedTensor) -> mg.MaskedTensor:
        x: Any = self.table(words)
        for block in self.blocks:
            x = block(x)
        return x.mean(-1)


def words(step: int, rank: int, layout: str) -> mg.MaskedTensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    numbers = torch.randint(0, 9, (4, 3), generator=generator)
    lengths = torch.tensor([3, 1, 2, 2])[torch.randperm(4, generator=generator)]
    mask = torch.arange(3) < lengths[:, None]
    if layout == "jagged":
        return mg.from_lengths(torch.where(mask, numbers, 0), lengths, layout=torch.jagged)
    return mg.masked(torch.where(mask, numbers, 2**40), mask)


def optimizers_of(module: Net) -> list[Any]:
    dense = [p for name, p in module.named_parameters() if not name.startswith("table")]
    return [torch.optim.SGD(dense, lr=0.1), mg.optim.Adagrad([module.table.weight], lr=0.1)]


def _training(rank: int, world_size: int, kind: str, layout: str, whole: bool) -> list[Tensor]:
    module: Any = Net(kind)
    for block in module.blocks:
        fsdp.fully_shard(block)
    if whole:
        fsdp.fully_shard(module, ignored_params={module.table.weight})
    model = mg.distributed.prepare(module)

    def loss(step: int) -> Tensor:
        return model(words(step, rank, layout)).square().sum()

    def again() -> None:  # which changes nothing, and leaves sharded layers alone
        mg.distributed.all_reduce_gradients(module)
        assert module.table.weight.grad.is_sparse

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        return trained(module, optimizers_of(module), loss, 3, again)


@pytest.mark.parametrize(
    ("kind", "layout", "whole"),
    [
        ("plain", "strided", False),
        ("plain", "jagged", True),
        ("dict", "strided", True),
        ("list", "strided", False),
        ("tuple", "jagged", False),
        ("namedtuple", "strided", True),
        ("dataclass", "strided", False),
    ],
)
def test_as_one_process(kind: str, layout: str, whole: bool) -> None:
    module = Net(kind)
    before = state(module)

    def loss(step: int) -> Tensor:
        return torch.stack([module(words(step, rank, layout)).square().sum() for rank in (0, 1)]).mean()

    expected = trained(module, optimizers_of(module), loss, 3)
    assert (expected[0] - before)[36:].abs().max() > 1e-3  # the layers that stood still
    check(run_on_ranks(_training, 2, kind, layout, whole), expected)


def sample(step: int, rank: int) -> mg.MaskedTensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.where(
        torch.rand(3, 4, generator=generator) < 0.2, torch.nan, torch.randn(3, 4, generator=generator)
    )
    return mg.from_nan(x)


def layers() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def _old_training(rank: int, world_size: int) -> list[Tensor]:
    model = fsdp.FullyShardedDataParallel(layers(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(2):
        optimizer.zero_grad()
        model(sample(step, rank)).square().sum().backward()
        optimizer.step()
        with fsdp.FullyShardedDataParallel.summon_full_params(model):
            found.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone())
    return found


def test_fully_sharded_data_parallel() -> None:
    """The older way, whose parameters lie flat."""
    module = layers()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    expected = []
    for step in range(2):
        optimizer.zero_grad()
        torch.stack([module(sample(step, rank)).square().sum() for rank in (0, 1)]).mean().backward()
        optimizer.step()
        expected.append(torch.cat([p.detach().flatten() for p in module.parameters()]).clone())
    for found in run_on_ranks(_old_training, 2):
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted)


def _in_half(rank: int, world_size: int) -> tuple[str, str, list[float]]:
    module = nn.Linear(4, 2)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64)
    fsdp.fully_shard(module, mp_policy=policy)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    x = sample(0, rank)
    x._values.requires_grad_()
    out = module(x)
    out.sum().backward()
    return str(seen[0]), str(out.dtype), [float(g) for g in x._values.grad[~x.mask]]


def test_mixed_precision_casts_masked_inputs_and_outputs() -> None:
    for seen, returned, under in run_on_ranks(_in_half, 2):
        assert (seen, returned) == ("torch.bfloat16", "torch.float64")
        assert not any(under)
