"""Letters through an LSTM in three ways: jagged, padded, and packed by hand; tokens per second of each.

``python -m examples.phonemes.packed`` prints them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

import maskgrad as mg

from .contest import loader
from .words import LETTERS, PADDING, Sample, load

__all__ = ["WAYS", "NextLetter", "tokens_per_second"]


class NextLetter(nn.Module):
    """Scores of the letter that follows each one."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.table = nn.Embedding(LETTERS, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.scores = nn.Linear(width, LETTERS)


def _jagged(model: NextLetter, words: list[Tensor]) -> Tensor:
    letters: Any = mg.from_sequences(words, layout=torch.jagged)
    read, _ = model.lstm(model.table(letters[:, :-1]))
    return F.cross_entropy(model.scores(read).flatten(0, 1), letters[:, 1:].flatten(0, 1))


def _padded(model: NextLetter, words: list[Tensor]) -> Tensor:
    letters = pad_sequence(words, batch_first=True, padding_value=PADDING)
    read, _ = model.lstm(model.table(letters[:, :-1]))
    return F.cross_entropy(model.scores(read).flatten(0, 1), letters[:, 1:].flatten(), ignore_index=PADDING)


def _packed(model: NextLetter, words: list[Tensor]) -> Tensor:
    words = [word for word in words if len(word) > 1]  # pack_sequence takes no empty ones
    before = pack_sequence([word[:-1] for word in words], enforce_sorted=False)
    after = pack_sequence([word[1:] for word in words], enforce_sorted=False)
    read, _ = model.lstm(before._replace(data=model.table(before.data)))
    return F.cross_entropy(model.scores(read.data), after.data)


WAYS: dict[str, Callable[[NextLetter, list[Tensor]], Tensor]] = {
    "jagged": _jagged,
    "padded": _padded,
    "packed": _packed,
}


def tokens_per_second(
    samples: list[Sample], steps: int = 20, budget: int = 4096, seed: int = 0, warm: int = 2
) -> dict[str, float]:
    """Median tokens per second of each way, in turns on the same shuffled batches, forward and backward.

    Raises:
        RuntimeError: the gradients of the ways differ.
        ValueError: there are too few samples for ``warm`` steps and one more.
    """
    torch.manual_seed(seed)
    model = NextLetter()
    speeds: dict[str, list[float]] = {name: [] for name in WAYS}
    for number, batch in zip(range(steps), loader(samples, budget, seed), strict=False):
        words = [sample["letters"] for sample in batch]
        tokens = sum(len(word) - 1 for word in words)
        gradients = {}
        for name in list(WAYS)[:: 1 if number % 2 else -1]:
            model.zero_grad()
            start = time.perf_counter()
            WAYS[name](model, words).backward()
            speeds[name].append(tokens / (time.perf_counter() - start))
            gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        for name, gradient in gradients.items():
            if not torch.allclose(gradient, gradients["padded"], rtol=1e-3, atol=1e-5):
                raise RuntimeError(f"gradients of the {name} and the padded way differ; please report this")
    if len(speeds["jagged"]) <= warm:
        raise ValueError(
            f"{len(speeds['jagged'])} batches are too few for {warm} warm-up steps; pass more samples or a "
            "smaller budget"
        )
    return {name: statistics.median(found[warm:]) for name, found in speeds.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for way, speed in tokens_per_second(load().training, steps=10).items():
        print(f"{way}: {speed:,.0f} tokens per second")
