"""Batch normalisation over all ranks, against PyTorch's layer in one process on the joint batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks

NAN = float("nan")
CHANNELS = 3


def batch(
    rank: int, number: int, shape: tuple[int, ...], masked: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(50 + rank)
    x = (torch.randn(number, CHANNELS, *shape, generator=draw) + 3).to(dtype)
    mask = torch.rand(x.shape, generator=draw) < (0.6 if masked else 2)
    if masked:
        mask[:, 2] = False  # a channel that nobody has
        mask[:, 1].zero_()  # and one of which there is a single entry
        mask[:1, 1].view(-1)[:1] = rank % 10 == 0
    return torch.where(mask, x, NAN), mask


CASES: list[tuple[tuple[int, ...], tuple[int, int], bool, dict[str, Any], torch.dtype]] = [
    ((), (6, 3), False, {}, torch.float32),
    ((4,), (5, 2), True, {}, torch.float32),
    ((2, 3), (4, 0), True, {"momentum": None, "dtype": torch.float64}, torch.float64),
    ((2,), (3, 0), False, {"affine": False, "eps": 0.1}, torch.float32),
    ((2,), (3, 4), True, {"track_running_stats": False}, torch.float32),
    ((5,), (7, 5), True, {}, torch.bfloat16),
]


def weighted(y: Any, rank: int) -> Tensor:
    """A loss that treats every entry differently."""
    plain = y.filled(0) if isinstance(y, mg.MaskedTensor) else y
    draw = torch.Generator().manual_seed(900 + rank)
    return (plain.float() * torch.randn(plain.shape, generator=draw)).sum()


def made(options: dict[str, Any], cls: Any) -> Any:
    layer = cls(CHANNELS, **options)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([1.0, 2.0, -1.0]))
            layer.bias.copy_(torch.tensor([0.5, 0.0, 1.0]))
    return layer


def _normalised(rank: int, world_size: int) -> list[Any]:
    found = []
    for shape, sizes, masked, options, dtype in CASES:
        layer = made(options, mg.distributed.SyncBatchNorm)
        result: list[Any] = []
        for step in range(2):
            x, mask = batch(rank + 10 * step, sizes[rank], shape, masked, dtype)
            x.requires_grad_()
            with torch.autograd.set_detect_anomaly(True):
                y = layer(mg.masked(x, mask) if masked else x)
                weighted(y, rank).backward()
            assert isinstance(y, mg.MaskedTensor) == masked
            if masked:
                assert torch.equal(y.mask, mask)
                y = y.filled(0)
            result += [y.detach(), x.grad]
        result += [p.grad for p in layer.parameters()]
        result += [b.clone() for b in layer.buffers()]
        layer.eval()
        x, mask = batch(rank, 2, shape, masked, dtype)
        if layer.track_running_stats:
            y = layer(mg.masked(x, mask) if masked else x)
            result.append((y.filled(0) if masked else y).detach())
        found.append((result, len(list(layer.parameters())), len(list(layer.buffers()))))
    return found


def test_as_one_process_on_the_joint_batch() -> None:
    answers = run_on_ranks(_normalised, 2)
    for number, (shape, sizes, masked, options, dtype) in enumerate(CASES):
        kinds: dict[int, Any] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d}
        layer = made(options, kinds[len(shape)])
        tolerance = {"rtol": 2e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
        results = [answer[number][0] for answer in answers]
        for step in range(2):
            parts = [batch(rank + 10 * step, sizes[rank], shape, masked, dtype) for rank in (0, 1)]
            x, mask = (torch.cat([p[i] for p in parts]) for i in (0, 1))
            x.requires_grad_()
            y = layer(mg.masked(x, mask) if masked else x)
            pieces = torch.split(y.filled(0) if masked else y, list(sizes))
            sum(weighted(piece, rank) for rank, piece in enumerate(pieces)).backward()
            torch.testing.assert_close(
                torch.cat([r[2 * step] for r in results]), torch.cat(pieces).detach(), **tolerance
            )
            torch.testing.assert_close(torch.cat([r[2 * step + 1] for r in results]), x.grad, **tolerance)
        params, buffers = answers[0][number][1:]
        for place, p in enumerate(layer.parameters()):
            # each rank has its share of the gradient of weight and bias
            torch.testing.assert_close(sum(r[4 + place] for r in results), p.grad, **tolerance)
        for place, b in enumerate(layer.buffers()):
            for r in results:
                torch.testing.assert_close(r[4 + params + place], b, **tolerance)
        layer.eval()
        if layer.track_running_stats:
            for rank, r in enumerate(results):
                x, mask = batch(rank, 2, shape, masked, dtype)
                y = layer(mg.masked(x, mask) if masked else x)
                torch.testing.assert_close(
                    r[4 + params + buffers], (y.filled(0) if masked else y).detach(), **tolerance
                )


def test_layers_are_converted_with_their_parameters_and_statistics() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), nn.BatchNorm1d(3))
    module(torch.randn(5, 2))
    before = copy.deepcopy(module.state_dict())
    shared = module[1][0].weight
    module[2].eval()
    converted = mg.distributed.SyncBatchNorm.convert(module)
    assert converted is module
    assert isinstance(module[1][0], mg.distributed.SyncBatchNorm)
    assert module[1][0].weight is shared
    assert [module[2].training, module[1][0].training] == [False, True]
    torch.testing.assert_close(module.state_dict(), before)
    again = mg.distributed.SyncBatchNorm.convert(module[2])
    assert again is module[2]
    assert isinstance(mg.distributed.SyncBatchNorm.convert(nn.BatchNorm2d(2)), mg.distributed.SyncBatchNorm)


def test_inputs_are_checked() -> None:
    layer = mg.distributed.SyncBatchNorm(3)
    with pytest.raises(ValueError, match=r"\(N, 3, \*\)"):
        layer(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="found"):
        layer(torch.zeros(3))
    with pytest.raises(TypeError, match="to_dense"):
        layer(mg.masked(torch.zeros(2, 3), torch.ones(2, 3).bool()).to_sparse())
