"""The course of the program: gradients of a step, a training in both ways, and the Trainer."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from maskgrad.optional_packages import require
from maskgrad.plot.canvas import COLORS, INK, TICK_SIZE, dress, figure

from .loop import MicroBatches, Way, collate, distance, exact, gradient, mean_of_means, whole_batch
from .model import StressReader
from .words import IGNORED, Sample, load, steps_of

__all__ = ["QUICK", "Settings", "run"]

WAYS: dict[str, Way] = {"mean of means": mean_of_means, "mg.GradientAccumulator": exact}
LEARNING_RATE = 2e-3
#: of the few steps with SGD in the Trainer
TRAINER_RATE = 0.05


@dataclass(frozen=True)
class Settings:
    """What a run is told."""

    steps: int = 120
    every: int = 4  # steps between two measurements of the gradients
    micro_batches: int = 8
    size: int = 8  # words of a micro-batch
    held_out: int = 1000
    trainer_steps: int = 4
    width: int = 64
    layers: int = 2
    seed: int = 0


QUICK = Settings(steps=3, every=1, micro_batches=3, size=4, held_out=20, trainer_steps=2, width=16, layers=1)


def run(settings: Settings, out: Path) -> dict[str, Any]:
    """Run the program, write ``finetune.json`` and ``finetune.png`` into ``out``, and give the numbers."""
    console = Console()
    require("matplotlib", "maskgrad.plot")  # now rather than after the training
    numbers = measured(settings, console)
    _print(numbers, console)
    out.mkdir(parents=True, exist_ok=True)
    (out / "finetune.json").write_text(json.dumps(numbers, indent=1))
    _draw(numbers, out / "finetune.png")
    console.print(f"Report: {out / 'finetune.json'}, {out / 'finetune.png'}", soft_wrap=True)
    return numbers


def measured(settings: Settings, console: Console) -> dict[str, Any]:
    """All numbers of a run."""
    words = load(settings.held_out + settings.steps * settings.micro_batches * settings.size, settings.seed)
    held_out, rest = words[: settings.held_out], words[settings.held_out :]
    steps = steps_of(rest, settings.steps, settings.micro_batches, settings.size)
    counts = [sum(word["labels"] != IGNORED for word in samples) for step in steps for samples in step]
    numbers: dict[str, Any] = {
        "settings": asdict(settings),
        "torch": torch.__version__,
        "labels": {"fewest": min(counts), "most": max(counts), "total": sum(counts)},
    }
    torch.manual_seed(settings.seed)
    start = StressReader(settings.width, settings.layers)
    known = [word["labels"] for word in held_out if word["labels"] != IGNORED]
    numbers["always the first syllable"] = sum(label == 0 for label in known) / max(len(known), 1)
    with Progress(console=console) as progress:
        bar = progress.add_task("training", total=2 * len(steps))
        numbers["errors"], numbers["trained"] = _trained(
            start, steps, held_out, settings.every, lambda: progress.advance(bar)
        )
    numbers["Trainer"] = _trainer_errors(start, steps[: settings.trainer_steps])
    return numbers


def _trained(
    start: StressReader,
    steps: list[MicroBatches],
    held_out: list[Sample],
    every: int,
    after_step: Callable[[], None],
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Both ways from the same parameters; before some steps of the exact one, the errors of both gradients there."""
    errors: dict[str, list[float]] = {name: [] for name in WAYS}
    results = {}
    for name, way in WAYS.items():
        model = copy.deepcopy(start)
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
        for number, step in enumerate(steps):
            if way is exact and number % every == 0:
                truth = gradient(whole_batch, model, step)
                for other in WAYS:
                    errors[other].append(distance(gradient(WAYS[other], model, step), truth))
            way(model, step)
            optimizer.step()
            optimizer.zero_grad()
            after_step()
        results[name] = _scored(model, held_out)
    return errors, results


def _scored(model: StressReader, samples: list[Sample]) -> dict[str, float]:
    """Mean loss and accuracy over the words that have a label."""
    with torch.no_grad():
        batch = collate(samples)
        found = model(**batch)
        known = batch["labels"] != IGNORED
        hits = (found["logits"].argmax(-1) == batch["labels"]).to_tensor(False)[known]
        return {"loss": float(found["loss"].mean()), "accuracy": float(hits.float().mean())}


def _trainer_errors(start: StressReader, steps: list[MicroBatches]) -> dict[str, float]:
    """How far from where the whole batch leads, in parts of the way travelled."""
    from .trainer import trained

    truth = copy.deepcopy(start)
    optimizer = torch.optim.SGD(truth.parameters(), TRAINER_RATE)
    for step in steps:
        whole_batch(truth, step)
        optimizer.step()
        optimizer.zero_grad()
    begin, goal = _flat(start), _flat(truth)
    found = {}
    for name, is_exact in (("Trainer", False), ("Trainer with the mixin", True)):
        model = copy.deepcopy(start)
        model.reduction = "none" if is_exact else "mean"
        found[name] = distance(trained(model, steps, TRAINER_RATE, exact=is_exact) - begin, goal - begin)
    return found


def _flat(model: StressReader) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _print(numbers: dict[str, Any], console: Console) -> None:
    labels = numbers["labels"]
    console.print(
        f"{labels['total']:,} labels; a micro-batch of {numbers['settings']['size']} words has {labels['fewest']} to "
        f"{labels['most']}."
    )
    table = Table(
        "gradients of a step", "error, median", "error, largest", "held-out loss", "held-out accuracy",
        title="Beside one pass over the whole batch",
    )  # fmt: skip
    for name, errors in numbers["errors"].items():
        result = numbers["trained"][name]
        table.add_row(
            name, f"{statistics.median(errors):.1e}", f"{max(errors):.1e}", f"{result['loss']:.4f}",
            f"{result['accuracy']:.1%}",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"Accuracy of who always says the first syllable: {numbers['always the first syllable']:.1%}"
    )
    for name, error in numbers["Trainer"].items():
        console.print(
            f"{name}: after {numbers['settings']['trainer_steps']} steps of SGD off by {error:.1e} of the way travelled"
        )


def _draw(numbers: dict[str, Any], path: Path) -> None:
    picture = figure(8, 4.4)
    axes, every = picture.subplots(), numbers["settings"]["every"]
    for color, (name, errors) in zip(COLORS, numbers["errors"].items(), strict=False):
        axes.semilogy(
            [1 + every * at for at in range(len(errors))], errors, "o", markersize=4, color=color, label=name
        )
    axes.legend(frameon=False, fontsize=TICK_SIZE, labelcolor=INK, loc="center right")
    off = statistics.median(numbers["errors"]["mean of means"])
    dress(
        axes, f"The mean of means is off by {off:.0%} in the median step;\none denominator is not", "step",
        "error of the gradient, relative",
    )  # fmt: skip
    picture.savefig(path)
