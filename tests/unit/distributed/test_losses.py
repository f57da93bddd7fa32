"""Losses of all ranks together, against one process on the joint batch, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import check, trained

NAN = float("nan")
CLASSES = 5
CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1])


def samples(rank: int, number: int) -> dict[str, Any]:
    """A batch of one rank with NaN wherever nothing is specified."""
    draw = torch.Generator().manual_seed(rank)
    x = torch.randn(number, CLASSES, generator=draw)
    mask = torch.rand(number, CLASSES, generator=draw) < 0.7
    labels = torch.randint(0, CLASSES, (number,), generator=draw)
    known = torch.rand(number, generator=draw) < 0.6
    return {
        "x": x,
        "y": torch.where(mask, torch.randn(number, CLASSES, generator=draw), NAN),
        "mask": mask,
        "labels": labels,
        "known": known,
        "ignored": labels.masked_fill(~known, -100),
        "weight": torch.rand(number, CLASSES, generator=draw),
    }


LOSSES: dict[str, Callable[[Tensor, dict[str, Any]], Any]] = {
    "sum": lambda x, b: F.mse_loss(x, mg.from_nan(b["y"]), reduction="sum"),
    "weighted": lambda x, b: F.mse_loss(x, mg.from_nan(b["y"]), weight=b["weight"]),
    "classes": lambda x, b: F.cross_entropy(
        x, mg.masked(b["labels"], b["known"]), weight=CLASS_WEIGHTS, label_smoothing=0.1
    ),
    "ignored": lambda x, b: F.cross_entropy(input=x, target=b["ignored"], weight=CLASS_WEIGHTS),
    "plain": lambda x, b: nn.L1Loss()(x, b["weight"]),
    "plain sum": lambda x, b: F.smooth_l1_loss(x, b["weight"], reduction="sum"),
    "divergence": lambda x, b: F.kl_div(
        x.log_softmax(1), mg.masked(b["weight"], b["mask"]), reduction="batchmean"
    ),
    "stored": lambda x, b: F.mse_loss(
        mg.masked(x, b["mask"]).to_sparse(), b["weight"], weight=b["weight"] + 1
    ),
    "large": lambda x, b: F.mse_loss(x.repeat(400, 40), mg.from_nan(b["y"].repeat(400, 40))),
    "half": lambda x, b: F.mse_loss(x.half(), mg.from_nan(b["y"].half())),
}


def value(loss: Any) -> Tensor:
    return loss.filled(NAN) if isinstance(loss, mg.MaskedTensor) else loss


def _losses(rank: int, world_size: int, sizes: tuple[int, ...]) -> list[Any]:
    found = []
    for loss_of in LOSSES.values():
        b = samples(rank, sizes[rank])
        x = b["x"].requires_grad_()
        with mg.distributed.global_losses(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loss = loss_of(x, b)
        with torch.autograd.set_detect_anomaly(True):
            loss.backward()
        found.append((isinstance(loss, mg.MaskedTensor), value(loss).detach(), x.grad))
    two = torch.tensor([2, 3])
    with mg.distributed.global_losses():
        assert torch.equal(F.l1_loss(two, two * rank, reduction="none"), two * (1 - rank))  # an integer each
    assert F.mse_loss(torch.ones(1) * rank, torch.zeros(1)).item() == rank  # by itself again
    return found


@pytest.mark.parametrize("sizes", [(6, 2), (5, 0), (0, 0)])
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
def test_as_one_process_on_the_joint_batch(sizes: tuple[int, ...]) -> None:
    parts = [samples(rank, size) for rank, size in enumerate(sizes)]
    answers = run_on_ranks(_losses, 2, sizes)
    for (name, loss_of), *found in zip(LOSSES.items(), *answers, strict=True):
        b = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        x = b["x"].requires_grad_()
        loss = loss_of(x, b)
        loss.backward()
        options: Any = {"rtol": 1e-2, "atol": 1e-3} if name == "half" else {"rtol": 1e-5, "atol": 1e-6}
        options["msg"] = lambda message, name=name: f"{name}: {message}"
        for masked, one, _ in found:
            assert masked == isinstance(loss, mg.MaskedTensor), name
            torch.testing.assert_close(one, value(loss).detach(), equal_nan=True, **options)
        slopes = torch.cat([slope for *_, slope in found if slope is not None])
        torch.testing.assert_close(slopes, x.grad * 2, **options)


def dataset() -> TensorDataset:
    draw = torch.Generator().manual_seed(11)
    labels = torch.randn(13, 3, generator=draw)
    labels[torch.rand(13, 3, generator=draw) < 0.4] = NAN
    return TensorDataset(torch.randint(0, 8, (13, 2), generator=draw), labels)


def regression() -> nn.Module:
    """A sparse table and a head with three outputs, of which labels may be missing."""
    torch.manual_seed(1)
    return nn.Sequential(nn.EmbeddingBag(8, 4, sparse=True, mode="mean"), nn.Linear(4, 3))


def _epoch(rank: int, world_size: int) -> list[Tensor]:
    data, module = dataset(), regression()
    sampler = DistributedSampler(data, world_size, rank, shuffle=False)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    model = mg.distributed.prepare(module)
    counted = mg.distributed.sampler_mask(sampler).split(2)
    parts = [(*batch, real) for batch, real in zip(loader, counted, strict=True)]

    def loss(step: int) -> Tensor:
        words, labels, real = parts[step]
        with mg.distributed.global_losses():
            return F.mse_loss(model(words), mg.masked(labels, real[:, None] & ~labels.isnan()))

    return trained(module, [mg.optim.Adagrad(module.parameters(), lr=0.1)], loss, len(parts))


@pytest.mark.parametrize("world_size", [2, 4])
def test_an_epoch_in_which_repeated_samples_and_missing_labels_count_for_nothing(world_size: int) -> None:
    module = regression()
    parts = [*DataLoader(dataset(), batch_size=2 * world_size)]

    def loss(step: int) -> Tensor:
        words, labels = parts[step]
        return F.mse_loss(module(words), mg.from_nan(labels))

    optimizer = mg.optim.Adagrad(module.parameters(), lr=0.1)
    check(run_on_ranks(_epoch, world_size), trained(module, [optimizer], loss, len(parts)))


def test_a_distributed_sampler_and_a_group_are_needed() -> None:
    with pytest.raises(TypeError, match="found RandomSampler"):
        mg.distributed.sampler_mask(RandomSampler(range(3)))
    with pytest.raises(RuntimeError, match="init_process_group"), mg.distributed.global_losses():
        pass
