"""How long a step takes, by treatment: in turns, so that what else the machine does meets all of them."""

from __future__ import annotations

import statistics
import time

import torch

import maskgrad as mg

from .data import Split
from .model import Delays
from .training import BATCH, LEARNING_RATE, Inputs, loss_of

__all__ = ["milliseconds_per_step"]

WARM, STEPS = 3, 40


def milliseconds_per_step(parts: Split, inputs: dict[str, Inputs]) -> dict[str, float]:
    """Medians of whole steps (batch, forward, backward, Adam) in processor time; compilation is over by then."""
    rivals = {}
    for name, given in inputs.items():
        model = Delays(given.told.shape[1], parts.rows.values())
        rivals[name] = (model, mg.optim.Adam(model.parameters(), lr=LEARNING_RATE), given.told)
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(WARM + STEPS):
        index = torch.randint(len(parts.training), (BATCH,))
        for name, (model, optimizer, numbers) in rivals.items():
            start = time.process_time()
            loss = loss_of(model, numbers, parts.training, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds[name].append(time.process_time() - start)
    return {name: 1000 * statistics.median(times[WARM:]) for name, times in seconds.items()}
