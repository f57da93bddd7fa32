"""MaskedTensors into, between and out of layers that DistributedDataParallel copies or fully_shard shards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import Answer, check, state, trained

fsdp = pytest.importorskip("torch.distributed.fsdp")


class Pair(NamedTuple):
    first: Any
    second: Any


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "dict": lambda x: {"x": (x, 1)},
    "list": lambda x: [x, None],
    "namedtuple": lambda x: Pair(x, 2),
    "dataclass": Answer,
}


def unpacked(x: Any) -> Any:
    while not isinstance(x, mg.MaskedTensor):
        x = x.scores if isinstance(x, Answer) else next(iter(x.values() if isinstance(x, dict) else x))
    return x


class Block(nn.Module):
    """Takes and returns MaskedTensors, in a container of the given kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(4, 4), kind

    def forward(self, given: Any) -> Any:
        return CONTAINERS[self.kind](self.linear(unpacked(given)).tanh())


class Net(nn.Module):
    """A table and blocks; in copies, a layer for each rank and one that nobody uses."""

    def __init__(self, kind: str, way: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.copied = way in ("ddp", "prepare")
        self.table = nn.Embedding(9, 4, sparse=way != "ddp")
        self.blocks = nn.ModuleList([Block(kind), Block(kind)])
        self.own = nn.ModuleList([Block(kind) for _ in range(3 if self.copied else 0)])

    def forward(self, words: mg.MaskedTensor, rank: int) -> Any:
        x: Any = self.table(words)
        for block in self.blocks:
            x = block(x)
        return self.own[rank](x) if self.copied else x


def words(step: int, rank: int, layout: str) -> mg.MaskedTensor:
    """Another number of rows on each rank; the second has a sequence of length 0, and none but such in step 1."""
    draw = torch.Generator().manual_seed(10 * step + rank)
    numbers = torch.randint(0, 9, (2 + rank, 4), generator=draw)
    lengths = torch.tensor([[4, 1], [3, 0, 2]][rank]) * int(step != 1 or rank == 0)
    mask = torch.arange(4) < lengths[:, None]
    if layout == "jagged":
        return mg.from_lengths(torch.where(mask, numbers, 0), lengths, layout=torch.jagged)
    return mg.masked(torch.where(mask, numbers, 2**40), mask)


def optimizers_of(module: Net) -> list[Any]:
    dense = [p for name, p in module.named_parameters() if not name.startswith("table")]
    return [torch.optim.SGD(dense, lr=0.1), mg.optim.Adagrad([module.table.weight], lr=0.1)]


def _training(rank: int, world_size: int, kind: str, layout: str, way: str) -> list[Tensor]:
    module: Any = Net(kind, way)
    if not module.copied:
        for block in module.blocks:
            fsdp.fully_shard(block)
    if way == "sharded as a whole":
        fsdp.fully_shard(module, ignored_params={module.table.weight})
    wrap: Any = DistributedDataParallel if way == "ddp" else mg.distributed.prepare
    model = wrap(module, find_unused_parameters=True) if module.copied else wrap(module)

    def loss(step: int) -> Tensor:
        squares = unpacked(model(words(step, rank, layout), rank)).square()
        with mg.distributed.global_losses():
            return F.l1_loss(squares, torch.zeros_like(squares))

    def again() -> None:  # which changes nothing, and leaves sharded layers alone
        if not module.copied:
            mg.distributed.all_reduce_gradients(module)
            assert module.table.weight.grad.is_sparse

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        return trained(module, optimizers_of(module), loss, 3, again)


@pytest.mark.parametrize(
    ("kind", "layout", "way"),
    [
        ("list", "jagged", "ddp"),
        ("dict", "strided", "ddp"),
        ("dataclass", "jagged", "ddp"),
        ("dict", "jagged", "prepare"),
        ("plain", "strided", "sharded"),
        ("list", "jagged", "sharded"),
        ("dataclass", "strided", "sharded"),
        ("dict", "strided", "sharded as a whole"),
        ("namedtuple", "jagged", "sharded as a whole"),
    ],
)
def test_as_one_process_on_the_joint_batch(kind: str, layout: str, way: str) -> None:
    """The mean over the tokens of all ranks, one of which has none in the second step."""
    module = Net(kind, way)
    before = state(module)

    def loss(step: int) -> Tensor:
        outputs = [unpacked(module(words(step, rank, "strided"), rank)) for rank in (0, 1)]
        return torch.cat([output.square().compressed() for output in outputs]).mean()

    expected = trained(module, optimizers_of(module), loss, 3)
    assert (expected[0] - before)[36:].abs().max() > 1e-3  # the layers that stood still
    check(run_on_ranks(_training, 2, kind, layout, way), expected)


def sample(rank: int) -> mg.MaskedTensor:
    draw = torch.Generator().manual_seed(rank)
    return mg.from_nan(
        torch.randn(3, 4, generator=draw).where(torch.rand(3, 4, generator=draw) > 0.2, torch.nan)
    )


def _old_way(rank: int, world_size: int) -> list[Tensor]:
    torch.manual_seed(4)
    model = fsdp.FullyShardedDataParallel(Block("list"), use_orig_params=True, device_id=torch.device("cpu"))
    unpacked(model([sample(rank)])).square().sum().backward()
    with fsdp.FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        return [p.grad.clone() for p in model.parameters()]


def test_fully_sharded_data_parallel() -> None:
    """The older way, whose parameters lie flat."""
    torch.manual_seed(4)
    module = Block("plain")
    torch.stack([module(sample(rank)).square().sum() for rank in (0, 1)]).mean().backward()
    for found in run_on_ranks(_old_way, 2):
        torch.testing.assert_close(found, [p.grad for p in module.parameters()])


def _in_half(rank: int, world_size: int) -> tuple[str, str, list[float]]:
    module = nn.Linear(4, 2)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64)
    fsdp.fully_shard(module, mp_policy=policy)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    x = sample(rank)
    x._values.requires_grad_()
    out = module(x)
    out.sum().backward()
    return str(seen[0]), str(out.dtype), [float(g) for g in x._values.grad[~x.mask]]


def test_mixed_precision_casts_masked_inputs_and_outputs() -> None:
    for seen, returned, under in run_on_ranks(_in_half, 2):
        assert (seen, returned) == ("torch.bfloat16", "torch.float64")
        assert not any(under)


def _masked_buffers(rank: int, world_size: int) -> None:
    mine: Any = mg.distributed.prepare
    for wrap, layer in (
        (DistributedDataParallel, nn.Linear(3, 2)),
        (mine, nn.Linear(3, 2)),
        (mine, nn.Embedding(3, 2, sparse=True)),
    ):
        module = nn.Sequential(layer)
        module.register_buffer("measured", mg.masked(torch.ones(2), torch.tensor([True, False])))
        with pytest.raises(UnsupportedOperationError, match=r"self\.register_buffer\('mask', x\.mask\)"):
            wrap(module)


def test_masked_buffers_are_refused() -> None:
    run_on_ranks(_masked_buffers, 2)
