"""One batch of sequences with few labels, cut at random: what every trainer is given, and the truth."""

from __future__ import annotations

import functools
import runpy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg

__all__ = ["Tagger", "batch", "cut", "jagged", "losses_of", "moved", "one_pass", "recipe"]

#: How losses come to a trainer.
FORMS = ["masked", "jagged", "plain with a count", "mean with a count"]


class Tagger(nn.Module):
    """Scores of 4 classes for each token; with labels a loss, too, as Hugging Face's Trainer expects it."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = mg.nn.Embedding(20, 6, sparse=sparse), nn.Linear(6, 4)

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        scores = self.out(self.table(input_ids))
        if labels is None:
            return scores
        return {"loss": F.cross_entropy(scores.movedim(-1, 1), labels), "logits": scores}


def batch(seed: int, samples: int = 12) -> tuple[Tensor, Tensor]:
    """Tokens and labels (N, 5), -100 where nothing is known, which is nothing at all in some samples."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (samples, 5), generator=generator)
    rate = torch.rand(samples, 1, generator=generator).square()
    rate[torch.rand(samples, 1, generator=generator) < 0.3] = 0
    known = torch.rand(samples, 5, generator=generator) < rate
    return torch.randint(1, 20, (samples, 5), generator=generator), torch.where(known, labels, -100)


def cut(seed: int, x: Tensor, y: Tensor, pieces: int) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches of random sizes, one without a sample if there are more than two."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, len(x) + 1, (pieces - 1,), generator=generator).sort().values.tolist()
    if pieces > 2:
        ends[1] = ends[0]  # one without a sample
    starts = [0, *ends]
    return [(x[a:b], y[a:b]) for a, b in zip(starts, [*ends, len(x)], strict=True)]


def jagged(x: Tensor, y: Tensor) -> tuple[Any, Any]:
    """The known tokens of each sequence, in a row, and their labels."""
    known = y != -100
    order, lengths = (~known).long().argsort(dim=1, stable=True), known.sum(1)
    return tuple(mg.from_lengths(t.gather(1, order), lengths, layout=torch.jagged) for t in (x, y))  # type: ignore[return-value]


def losses_of(model: Any, x: Tensor, y: Tensor, form: str = "masked") -> tuple[Any, int | None]:
    """Losses and their count, in one of FORMS."""
    known = y != -100
    if form == "jagged":
        tokens, labels = jagged(x, y)
        return F.cross_entropy(model(tokens).movedim(-1, 1), labels, reduction="none"), None
    scores = model(x).movedim(-1, 1)
    if form == "masked":
        return F.cross_entropy(scores, mg.masked(torch.where(known, y, 99), known), reduction="none"), None
    plain = F.cross_entropy(scores, y, reduction="none" if form.startswith("plain") else "mean")
    return plain, int(known.sum())


def one_pass(
    model: Any, batches: list[tuple[Tensor, Tensor]], lr: float = 0.5, clip: float = 0.3
) -> list[float]:
    """A step of SGD for each whole batch, in plain PyTorch; gives the mean losses."""
    means = []
    for x, y in batches:
        model.zero_grad()
        known = y != -100
        scores = F.linear(F.embedding(x, model.table.weight), model.out.weight, model.out.bias)
        loss = F.cross_entropy(scores[known], y[known])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        with torch.no_grad():
            for param in model.parameters():
                param.sub_(param.grad, alpha=lr)
        means.append(loss.item())
    return means


def moved(one: Any, other: Any) -> float:
    """The largest difference of two models' parameters; NaN if there is one."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return float(torch.stack([(a - b).detach().abs().max() for a, b in pairs]).max())


@functools.cache
def recipe(program: str, name: str) -> Any:
    """Run a program of a page, and return a function or class of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return runpy.run_path(str(Path(__file__).parent / "programs" / f"{program}.py"))[name]
