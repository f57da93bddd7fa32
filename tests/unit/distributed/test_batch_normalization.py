"""Batch normalisation over all ranks, against PyTorch's layer in one process on the joint batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks

CHANNELS = 3


def batch(rank: int, number: int, shape: tuple[int, ...], masked: bool, dtype: torch.dtype) -> list[Tensor]:
    """Values, mask, and the slope of each entry."""
    draw = torch.Generator().manual_seed(50 + rank)
    x = (torch.randn(number, CHANNELS, *shape, generator=draw) + 3).to(dtype)
    mask = torch.rand(x.shape, generator=draw) < (0.6 if masked else 2)
    if masked:
        mask[:, 2] = False  # a channel that nobody has
        mask[:, 1].zero_()  # and one of which there is a single entry
        mask[:1, 1].view(-1)[:1] = rank % 10 == 0
    return [torch.where(mask, x, torch.nan), mask, torch.randn(x.shape, generator=draw)]


#: Shape of a channel, numbers of samples of the ranks, whether they are masked, options, dtype.
CASES: list[tuple[tuple[int, ...], tuple[int, int], bool, dict[str, Any], torch.dtype]] = [
    ((), (6, 3), False, {}, torch.float32),
    ((4,), (5, 2), True, {}, torch.float32),
    ((2, 3), (4, 0), True, {"momentum": None, "dtype": torch.float64}, torch.float64),
    ((2,), (3, 0), False, {"affine": False, "eps": 0.1}, torch.float32),
    ((5,), (7, 5), True, {"track_running_stats": False}, torch.bfloat16),
]


def course(cls: Any, ranks: list[int], number: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Two steps and an evaluation on the batches of ``ranks`` together: results; gradients; running statistics."""
    shape, sizes, masked, options, dtype = CASES[number]
    layer = cls(CHANNELS, **options)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([1.0, 2.0, -1.0]))
            layer.bias.copy_(torch.tensor([0.5, 0.0, 1.0]))
    results = []
    for step in range(3):
        if step == 2:
            layer.eval()
        parts = [batch(rank + 10 * step, sizes[rank], shape, masked, dtype) for rank in ranks]
        x, mask, slopes = (torch.cat(some) for some in zip(*parts, strict=True))
        x.requires_grad_()
        if step < 2 or layer.track_running_stats:
            y = layer(mg.masked(x, mask) if masked else x)
            assert isinstance(y, mg.MaskedTensor) == masked
            assert not masked or torch.equal(y.mask, mask)
            y = y.filled(0) if masked else y
            with torch.autograd.set_detect_anomaly(True):
                (y.float() * slopes).sum().backward()
            results += [y.detach(), x.grad]
    return results, [p.grad for p in layer.parameters()], list(layer.buffers())


def _normalised(rank: int, world_size: int, number: int) -> Any:
    return course(mg.distributed.SyncBatchNorm, [rank], number)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_as_one_process_on_the_joint_batch(number: int) -> None:
    shape, *_, dtype = CASES[number]
    kind = nn.BatchNorm2d if len(shape) == 2 else nn.BatchNorm1d
    tolerance = {"rtol": 2e-2, "atol": 3e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    results, gradients, statistics = course(kind, [0, 1], number)
    answers = run_on_ranks(_normalised, 2, number)
    for parts, whole in zip(zip(*(answer[0] for answer in answers), strict=True), results, strict=True):
        torch.testing.assert_close(torch.cat(parts), whole, **tolerance)
    # each rank has its share of the gradient of weight and bias
    for shares, whole in zip(zip(*(answer[1] for answer in answers), strict=True), gradients, strict=True):
        torch.testing.assert_close(sum(shares), whole, **tolerance)
    for *_, found in answers:
        torch.testing.assert_close(found, statistics, **tolerance)


def test_layers_are_converted_with_their_parameters_and_statistics() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), nn.BatchNorm1d(3))
    module(torch.randn(5, 2))
    before = copy.deepcopy(module.state_dict())
    shared = module[1][0].weight
    module[2].eval()
    assert mg.distributed.SyncBatchNorm.convert(module) is module
    assert isinstance(module[1][0], mg.distributed.SyncBatchNorm)
    assert module[1][0].weight is shared
    assert [module[2].training, module[1][0].training] == [False, True]
    torch.testing.assert_close(module.state_dict(), before)
    assert mg.distributed.SyncBatchNorm.convert(module[2]) is module[2]


def test_inputs_are_checked() -> None:
    layer = mg.distributed.SyncBatchNorm(3)
    for x in (torch.zeros(2, 4), torch.zeros(3)):
        with pytest.raises(ValueError, match=r"\(N, 3, \*\), found"):
            layer(x)
    with pytest.raises(TypeError, match="to_dense"):
        layer(mg.masked(torch.zeros(2, 3), torch.ones(2, 3).bool()).to_sparse())
