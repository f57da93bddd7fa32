"""Losses of all ranks together, against one process on the joint batch, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import check, trained

NAN = float("nan")
CLASSES = 5


def samples(rank: int, number: int) -> dict[str, Any]:
    """A batch of one rank with NaN wherever nothing is specified."""
    draw = torch.Generator().manual_seed(rank)
    x = torch.randn(number, CLASSES, generator=draw)
    mask = torch.rand(number, CLASSES, generator=draw) < 0.7
    return {
        "x": x,
        "y": torch.where(mask, torch.randn(number, CLASSES, generator=draw), NAN),
        "mask": mask,
        "labels": torch.randint(0, CLASSES, (number,), generator=draw),
        "known": torch.rand(number, generator=draw) < 0.6,
        "weight": torch.rand(number, CLASSES, generator=draw),
    }


def joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: torch.cat([b[name] for b in batches]) for name in batches[0]}


def target(b: dict[str, Any]) -> Any:
    return mg.masked(b["y"], b["mask"])


class_weights = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1])

LOSSES: dict[str, Callable[[Tensor, dict[str, Any]], Any]] = {
    "mse": lambda x, b: F.mse_loss(x, target(b)),
    "mse sum": lambda x, b: F.mse_loss(x, target(b), reduction="sum"),
    "mse weighted": lambda x, b: F.mse_loss(x, target(b), weight=b["weight"]),
    "huber": lambda x, b: nn.HuberLoss()(x, target(b)),
    "gaussian": lambda x, b: F.gaussian_nll_loss(x, target(b), torch.ones_like(x)),
    "logits": lambda x, b: F.binary_cross_entropy_with_logits(x, mg.masked(b["y"].sigmoid(), b["mask"])),
    "classes": lambda x, b: F.cross_entropy(x, mg.masked(b["labels"], b["known"])),
    "classes weighted": lambda x, b: F.cross_entropy(
        x, mg.masked(b["labels"], b["known"]), weight=class_weights, label_smoothing=0.1
    ),
    "ignored": lambda x, b: F.cross_entropy(x, b["labels"].masked_fill(~b["known"], -100)),
    "ignored weighted": lambda x, b: F.cross_entropy(
        input=x, target=b["labels"].masked_fill(~b["known"], -100), weight=class_weights
    ),
    "plain": lambda x, b: nn.L1Loss()(x, b["weight"]),
    "plain sum": lambda x, b: F.smooth_l1_loss(x, b["weight"], reduction="sum"),
    "divergence": lambda x, b: F.kl_div(
        x.log_softmax(1), mg.masked(b["weight"], b["mask"]), reduction="batchmean"
    ),
    "cosine": lambda x, b: F.cosine_embedding_loss(x, mg.masked(b["weight"], b["mask"]), torch.ones(len(x))),
    "margins": lambda x, b: F.multi_margin_loss(x, mg.masked(b["labels"], b["known"])),
    "stored": lambda x, b: F.mse_loss(mg.masked(x, b["mask"]).to_sparse(), b["weight"]),
    "stored weighted": lambda x, b: F.mse_loss(
        mg.masked(x, b["mask"]).to_sparse(), b["weight"], weight=b["weight"] + 1
    ),
    "large": lambda x, b: F.mse_loss(
        x.repeat(400, 40), mg.masked(b["y"].repeat(400, 40), b["mask"].repeat(400, 40))
    ),
    "half": lambda x, b: F.mse_loss(x.half(), mg.masked(b["y"].half(), b["mask"])),
}
SIZES = {"uneven": (6, 2), "one rank has nothing": (5, 0)}


def value(loss: Any) -> Tensor:
    return loss.filled(NAN) if isinstance(loss, mg.MaskedTensor) else loss


def _losses(rank: int, world_size: int, names: list[str], sizes: tuple[int, ...]) -> list[Any]:
    found = []
    for name in names:
        b = samples(rank, sizes[rank])
        x = b["x"].requires_grad_()
        with mg.distributed.global_losses(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            loss = LOSSES[name](x, b)
        with torch.autograd.set_detect_anomaly(True):
            loss.backward()
        found.append((isinstance(loss, mg.MaskedTensor), value(loss).detach(), x.grad))
    assert F.mse_loss(torch.ones(1) * rank, torch.zeros(1)).item() == rank  # by itself again
    return found


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
def test_as_one_process_on_the_joint_batch(sizes: tuple[int, ...]) -> None:
    names = list(LOSSES)
    answers = run_on_ranks(_losses, 2, names, sizes)
    for number, name in enumerate(names):
        b = joined([samples(rank, size) for rank, size in enumerate(sizes)])
        x = b["x"].requires_grad_()
        loss = LOSSES[name](x, b)
        loss.backward()
        tolerance = {"rtol": 1e-2, "atol": 1e-3} if name == "half" else {"rtol": 1e-5, "atol": 1e-6}
        for masked, found, _ in (answer[number] for answer in answers):
            assert masked == isinstance(loss, mg.MaskedTensor), name
            torch.testing.assert_close(
                found, value(loss).detach(), msg=lambda m, n=name: f"{n}: {m}", **tolerance
            )
        slopes = torch.cat([answer[number][2] for answer in answers if answer[number][2] is not None])
        torch.testing.assert_close(slopes, x.grad * 2, msg=lambda m, n=name: f"{n}: {m}", **tolerance)


def _nothing_anywhere(rank: int, world_size: int) -> list[Any]:
    x = torch.ones(2, requires_grad=True)
    with mg.distributed.global_losses():
        loss = F.mse_loss(x, mg.masked(torch.full((2,), NAN), torch.zeros(2).bool()))
        each = F.mse_loss(x, torch.zeros(2) + rank, reduction="none")
        integers = F.l1_loss(torch.tensor([2, 3]), torch.tensor([0, 0]), reduction="none")
    assert torch.equal(integers, torch.tensor([2, 3]))  # their dtype, too
    loss.backward()
    return [type(loss) is torch.Tensor and bool(loss.isnan()), x.grad.tolist(), each.tolist()]


def test_nothing_anywhere_and_no_reduction() -> None:
    first, second = run_on_ranks(_nothing_anywhere, 2)
    assert first == [True, [0.0, 0.0], [1.0, 1.0]]
    assert second == [True, [0.0, 0.0], [0.0, 0.0]]


def dataset(number: int) -> torch.utils.data.TensorDataset:
    draw = torch.Generator().manual_seed(11)
    labels = torch.randn(number, 3, generator=draw)
    labels[torch.rand(number, 3, generator=draw) < 0.4] = NAN
    return torch.utils.data.TensorDataset(torch.randint(0, 8, (number, 2), generator=draw), labels)


class Regression(nn.Module):
    """A sparse table and a head with three outputs, of which labels may be missing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(8, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words).mean(1))


def _epoch(rank: int, world_size: int) -> list[Tensor]:
    data, module = dataset(13), Regression()
    sampler = torch.utils.data.DistributedSampler(data, world_size, rank, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
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
    module = Regression()
    parts = [*torch.utils.data.DataLoader(dataset(13), batch_size=2 * world_size)]

    def loss(step: int) -> Tensor:
        words, labels = parts[step]
        return F.mse_loss(module(words), mg.from_nan(labels))

    optimizer = mg.optim.Adagrad(module.parameters(), lr=0.1)
    check(run_on_ranks(_epoch, world_size), trained(module, [optimizer], loss, len(parts)))


def test_a_group_is_needed() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"), mg.distributed.global_losses():
        pass
