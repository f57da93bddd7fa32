"""How long a training step takes with :class:`maskgrad.optim.Adagrad` and with ``torch.optim.Adagrad``.

The two train the same model on the same batches in turns, so that whatever else the machine does meets both.
Without weight decay, which PyTorch's refuses on sparse gradients, they must arrive at the same parameters
from the same gradients; this is checked before any clock starts.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg

from .factorization import BATCH_SIZE, LEARNING_RATE, Factorization
from .ratings import Ratings

__all__ = ["DisagreementError", "StepTimes", "measure", "no_times"]

#: beginning above 0 keeps rounding errors rounding errors: from 0, Adagrad's first step is lr times the sign of the
#: gradient, however small that is
INITIAL_ACCUMULATOR = 0.1
#: steps that are compared; they compile and warm up what there is to compile and warm up, too
COMPARED_STEPS = 10


class DisagreementError(RuntimeError):
    """The optimizers do not compute the same thing, so that their times cannot be compared."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds for each step measured, by optimizer."""

    whole: dict[str, list[float]]  # forward, backward, optimizer
    optimizer: dict[str, list[float]]  # of which the optimizer


class _Contestant:
    """A model, its optimizer and its stopwatch."""

    def __init__(self, model: Factorization, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def loss(self, batch: Ratings) -> Tensor:
        """Summed squared error of ``batch``."""
        return F.mse_loss(self.model(batch.users, batch.movies), batch.stars, reduction="sum")

    def step(self, batch: Ratings) -> tuple[float, float]:
        """Train on ``batch``; seconds it took, and seconds the optimizer took of them."""
        device = batch.stars.device
        start = _now(device)
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        middle = _now(device)
        self.optimizer.step()
        end = _now(device)
        return end - start, end - middle


def measure(
    training: Ratings, steps: int, times: StepTimes, after_step: Callable[[], None] = lambda: None
) -> None:
    """Compare the optimizers, then append the seconds of ``steps`` steps of each to ``times``.

    Raises:
        DisagreementError: they arrive at different parameters.
    """
    contestants = _contestants(training)
    batches = [
        training[torch.randint(len(training), (BATCH_SIZE,)).to(training.stars.device)] for _ in range(steps)
    ]
    # PyTorch's optimizer makes sparse tensors, and warns unless told whether to check them.
    with torch.sparse.check_sparse_tensor_invariants(False):
        ours, theirs = contestants.values()
        _check_agreement(ours, theirs, batches[:COMPARED_STEPS])
        for number, batch in enumerate(batches):
            # whoever goes second finds the batch in the cache
            names = list(contestants) if number % 2 else list(contestants)[::-1]
            for name in names:
                whole, optimizer = contestants[name].step(batch)
                times.whole[name].append(whole)
                times.optimizer[name].append(optimizer)
            after_step()


def no_times() -> StepTimes:
    """Nothing measured yet."""
    names = ("mg.optim.Adagrad", "torch.optim.Adagrad")
    return StepTimes({name: [] for name in names}, {name: [] for name in names})


def _contestants(training: Ratings) -> dict[str, _Contestant]:
    model = Factorization(training.num_users, training.num_movies, training.stars.mean().cpu())
    ours, theirs = model.to(training.stars.device), copy.deepcopy(model)
    return {
        "mg.optim.Adagrad": _Contestant(
            ours,
            mg.optim.Adagrad(ours.parameters(), LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR),
        ),
        "torch.optim.Adagrad": _Contestant(
            theirs,
            torch.optim.Adagrad(
                theirs.parameters(), LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR
            ),
        ),
    }


def _check_agreement(ours: _Contestant, theirs: _Contestant, batches: list[Ratings]) -> None:
    """Give both the same gradients, and compare the parameters they arrive at.

    Left to themselves the models would drift apart: training amplifies the rounding of a merged gradient.
    """
    pairs = list(zip(ours.model.named_parameters(), theirs.model.parameters(), strict=True))
    for batch in batches:
        ours.optimizer.zero_grad()
        ours.loss(batch).backward()
        for (_, mine), stock in pairs:
            stock.grad = None if mine.grad is None else mine.grad.clone()
        ours.optimizer.step()
        theirs.optimizer.step()
    for (name, mine), stock in pairs:
        if not torch.allclose(mine, stock, rtol=1e-4, atol=1e-5):
            difference = (mine - stock).abs().max().item()
            raise DisagreementError(
                f"after {len(batches)} steps without weight decay, mg.optim.Adagrad and torch.optim.Adagrad differ "
                f"by up to {difference:.2g} in {name}; please report this, with `python -m torch.utils.collect_env`"
            )


def _now(device: torch.device) -> float:
    """Seconds on a clock, when all that was asked of the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
