"""MaskedTensors into, between and out of layers that DistributedDataParallel copies or fully_shard shards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import Answer, check, trained

fsdp = pytest.importorskip("torch.distributed.fsdp")
parallel = pytest.importorskip("torch.distributed.tensor.parallel")


CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: x,
    "dict": lambda x: {"x": (x, 1)},
    "list": lambda x: [x, None],
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

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        found = trained(module, optimizers_of(module), loss, 3)
    if not module.copied:
        exchanged = module.table.weight.grad.to_dense()
        mg.distributed.all_reduce_gradients(
            module
        )  # leaves sharded layers alone, and the same is the average
        torch.testing.assert_close(module.table.weight.grad.to_dense(), exchanged)
    return found


@pytest.mark.parametrize(
    ("kind", "layout", "way"),
    [
        ("list", "jagged", "ddp"),
        ("dataclass", "jagged", "ddp"),
        ("dict", "jagged", "prepare"),
        ("plain", "strided", "sharded"),
        ("list", "jagged", "sharded"),
        ("dataclass", "strided", "sharded"),
        ("dict", "strided", "sharded as a whole"),
        ("plain", "jagged", "sharded as a whole"),
    ],
)
def test_as_one_process_on_the_joint_batch(kind: str, layout: str, way: str) -> None:
    """The mean over the tokens of all ranks, one of which has none in the second step."""
    module = Net(kind, way)

    def loss(step: int) -> Tensor:
        outputs = [unpacked(module(words(step, rank, "strided"), rank)) for rank in (0, 1)]
        return torch.cat([output.square().compressed() for output in outputs]).mean()

    expected = trained(module, optimizers_of(module), loss, 3)
    check(run_on_ranks(_training, 2, kind, layout, way), expected)


def _in_half(rank: int, world_size: int) -> tuple[str, str, list[float]]:
    module = nn.Linear(4, 2)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64)
    fsdp.fully_shard(module, mp_policy=policy)
    seen: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    x = mg.from_nan(torch.ones(3, 4).where(torch.arange(4) > rank, torch.nan))
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


def layers() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).double()


def padded(layout: torch.layout = torch.strided) -> mg.MaskedTensor:
    values, lengths = torch.arange(24.0, dtype=torch.float64).sin().view(2, 3, 4), torch.tensor([3, 1])
    values[1, 1:] = 0 if layout is torch.jagged else torch.nan
    return mg.from_lengths(values, lengths, layout=layout)


def _parallel(rank: int, world_size: int) -> tuple[str, Tensor, list[Tensor]]:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world_size,))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    module: Any = parallel.parallelize_module(layers(), mesh, plan)
    x = padded()
    for given in (x, padded(torch.jagged)):
        with pytest.raises(mg.errors.UnsupportedOperationError) as refusal:
            module(given)
    y = mg.masked(module(x.filled(0.0)), x.mask)
    y.square().sum().backward()
    return str(refusal.value), y.filled(0.0).detach(), [p.grad.full_tensor() for p in module.parameters()]


def test_tensor_parallel_layers_refuse_and_the_way_that_is_named_is_right() -> None:
    module = layers()
    y = module(padded())
    y.square().sum().backward()
    for words, found, gradients in run_on_ranks(_parallel, 2):
        assert words.startswith("DTensor does not support MaskedTensor")
        assert "y = mg.masked(module(x.filled(0.)), mask)" in words
        torch.testing.assert_close(found, y.filled(0.0))
        torch.testing.assert_close(gradients, [p.grad for p in module.parameters()])
