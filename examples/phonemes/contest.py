"""One model twice, trained on the same batches in turns: once jagged, once padded, each with a stopwatch."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch.utils.data import DataLoader

import maskgrad as mg

from . import jagged, padded
from .model import Speller
from .words import LETTERS, Dictionary, Sample

__all__ = ["WAYS", "Way", "agreement", "loader", "measure", "scored", "train"]

WAYS = {"jagged": jagged, "padded": padded}
LEARNING_RATE = 2e-3
#: sequences that are put together by length, and none
SORTED, SHUFFLED = 4096, 1


@dataclass
class Way:
    """One of the two: its model, and what it cost."""

    functions: ModuleType
    model: Speller
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def step(self, samples: list[Sample]) -> None:
        """Put a batch together, and train on it."""
        start = time.perf_counter()
        loss = self.functions.loss(self.model, self.functions.collate(samples))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        self.schedule.step()
        self.losses.append(loss.item())


@dataclass(frozen=True)
class Batches:
    """How many tokens each batch had, and how many places when it was padded."""

    tokens: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def add(self, samples: list[Sample]) -> None:
        for name, spare in (("letters", 0), ("sounds", 1)):  # the last sound is not read
            lengths = [len(sample[name]) - spare for sample in samples]
            tokens, places = sum(lengths), len(lengths) * max(lengths)
            if name == "letters":
                self.tokens.append(tokens)
                self.places.append(places)
            else:
                self.tokens[-1] += tokens
                self.places[-1] += places

    @property
    def density(self) -> float:
        """The share of tokens in a padded batch."""
        return sum(self.tokens) / sum(self.places)


def loader(samples: list[Sample], budget: int, seed: int, bucket: int = SHUFFLED) -> DataLoader[list[Sample]]:
    """Batches of at most ``budget`` letters and sounds; what is done with them is up to each way.

    With one way only, ``collate_fn=mg.interop.collate_jagged`` belongs here.
    """
    lengths = [len(sample["letters"]) + len(sample["sounds"]) for sample in samples]
    sampler = mg.interop.TokenBudgetSampler(lengths, budget, shuffle=True, seed=seed, bucket=bucket)
    return DataLoader(samples, batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]


def contestants(
    dictionary: Dictionary, steps: int, seed: int, dtype: torch.dtype = torch.float32
) -> dict[str, Way]:
    """Both ways, from the same parameters."""
    torch.manual_seed(seed)
    model = Speller(LETTERS, len(dictionary.sounds)).to(dtype)
    ways = {}
    for name, functions in WAYS.items():
        mine = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(mine.parameters(), LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, LEARNING_RATE, total_steps=max(steps, 20), pct_start=0.1
        )
        ways[name] = Way(functions, mine, optimizer, schedule)
    return ways


def train(
    ways: dict[str, Way],
    batches: DataLoader[list[Sample]],
    steps: int,
    after_step: Callable[[], None] = lambda: None,
) -> Batches:
    """``steps`` steps of each way, in turns: what else the machine does meets both."""
    seen = Batches()
    while len(seen.tokens) < steps:
        for samples in batches:
            if len(seen.tokens) == steps:
                break
            seen.add(samples)
            # whoever goes second finds the words in the cache
            order = list(ways.values())
            for way in order if len(seen.tokens) % 2 else reversed(order):
                way.step(samples)
            after_step()
    return seen


def measure(ways: dict[str, Way], seen: Batches, warm: int = 2) -> dict[str, float]:
    """Tokens per second by way, and how many times as fast the first is: medians, without the first steps."""
    tokens = statistics.median(seen.tokens[warm:])
    seconds = {name: statistics.median(way.seconds[warm:]) for name, way in ways.items()}
    speeds = {name: tokens / seconds[name] for name in ways}
    return speeds | {"ratio": seconds["padded"] / seconds["jagged"]}


def agreement(ways: dict[str, Way]) -> float:
    """The largest difference between parameters of the two ways."""
    jagged_model, padded_model = (way.model for way in ways.values())
    pairs = zip(jagged_model.parameters(), padded_model.parameters(), strict=True)
    return max((mine - theirs).abs().max().item() for mine, theirs in pairs)


def scored(way: Way, samples: list[Sample], size: int = 500) -> tuple[float, float]:
    """Shares of sounds that are right after the right ones before them, and of words that are right as a whole.

    The second is that of greedy decoding too: its first wrong sound is the first wrong one here.
    """
    sounds, words = [], []
    with torch.no_grad():
        for start in range(0, len(samples), size):
            batch = way.functions.collate(samples[start : start + size])
            hits, whole = way.functions.right(way.model, batch)
            sounds.append(hits)
            words.append(whole)
    return torch.cat(sounds).float().mean().item(), torch.cat(words).float().mean().item()
