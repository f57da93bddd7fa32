"""The course of the demonstration: load, train, measure, report; whole or as far as it got."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from maskgrad.optional_packages import require

from . import data, pictures, step_timing
from .autoencoder import ItemAutoencoderLearner
from .baseline import BiasBaseline
from .factorization import FactorizationLearner
from .processes import Share, together
from .ratings import Split, split
from .report import METRICS, THREADS, Report, Settings
from .scores import score
from .tables import print_tables
from .training import History, Learner, fit

__all__ = ["Settings", "run"]

TIMED_STEPS = 150


def run(settings: Settings) -> bool:
    """Run the demonstration and write its report.

    Returns:
        True; False if Ctrl-C ended it early and the report is partial.

    Raises:
        MissingDependencyError: matplotlib or the data set is absent or damaged; nothing is written then.
    """
    console = Console()
    require("matplotlib", "maskgrad.plot")  # now rather than after the training
    report = Report(settings)
    try:
        with _few_threads():
            report.ratings = data.load()
            _train_and_measure(report, console)
        _remove_old_report(settings)
        drawn = list(pictures.draw(report, settings.out))
        report.complete = True
        written = [report.write(), *drawn]
    except KeyboardInterrupt:
        report.complete = False
        console.print("\nInterrupted; writing what there is ...")
        _remove_old_report(settings)
        # the numbers first: they are there even if Ctrl-C is pressed again while the pictures are drawn
        written = [report.write(), *pictures.draw(report, settings.out)]
    print_tables(report, console)
    # soft_wrap: a path is copied as a whole
    console.print("Report: " + ", ".join(str(path) for path in written), soft_wrap=True)
    return report.complete


@contextmanager
def _few_threads() -> Iterator[None]:
    """Let PyTorch compute on one core inside the block.

    A step is too small for a second thread to gain much, and threads that wait for each other on a busy machine
    have cost a factor of twenty. Besides, the numbers are then the same whatever the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _remove_old_report(settings: Settings) -> None:
    """So that a partial report is not completed by pictures of another run."""
    for name in (METRICS, *pictures.NAMES):
        (settings.out / name).unlink(missing_ok=True)


def _train_and_measure(report: Report, console: Console) -> None:
    ratings, settings = report.ratings, report.settings
    if ratings is None:
        raise ValueError("there are no ratings to learn from")
    console.print(
        f"MovieLens: {len(ratings):,} ratings of {ratings.num_movies:,} movies by {ratings.num_users:,} users; "
        f"{ratings.missing:.1%} of the matrix is missing."
    )
    report.split = split(ratings, settings.seed)
    parts = report.split.to(settings.device)
    baseline = BiasBaseline.fit(parts.training)
    held_out = parts.held_out
    report.scores["global mean"] = score(baseline.mean.expand(len(held_out)), held_out.stars)
    report.scores["user and movie biases"] = score(
        baseline.predict(held_out.users, held_out.movies), held_out.stars
    )
    with _progress(console) as progress:
        with together(settings.processes, _train_in_silence, settings, parts, baseline) as share:
            for name, learner in _learners(parts, baseline, share).items():
                with _stage(report, name):
                    _train(report, name, learner, parts, progress)
        with _stage(report, "step times"):
            bar = progress.add_task("time per step", total=TIMED_STEPS, note="")
            step_timing.measure(parts.training, TIMED_STEPS, report.times, lambda: progress.advance(bar))


def _learners(parts: Split, baseline: BiasBaseline, share: Share) -> Mapping[str, Callable[[], Learner]]:
    return {
        "matrix factorization": lambda: FactorizationLearner(parts.training, share),
        "item autoencoder": lambda: ItemAutoencoderLearner(parts.training, baseline, share),
    }


def _train_in_silence(share: Share, settings: Settings, parts: Split, baseline: BiasBaseline) -> None:
    """What the other processes do: the same, on their parts of the batches."""
    with _few_threads():
        for learner in _learners(parts, baseline, share).values():
            torch.manual_seed(settings.seed)
            fit(learner(), parts, settings.epochs, History(), lambda: None)


def _train(
    report: Report, name: str, learner: Callable[[], Learner], parts: Split, progress: Progress
) -> None:
    torch.manual_seed(report.settings.seed)  # each model is the same whatever ran before it
    history = report.histories[name] = History()
    bar = progress.add_task(name, total=report.settings.epochs, note="")

    def after_epoch() -> None:
        if history.kept is not None:
            report.scores[name] = history.kept
        progress.update(bar, advance=1, note=f"validation RMSE {history.validation[-1]:.4f}")

    fit(learner(), parts, report.settings.epochs, history, after_epoch)


@contextmanager
def _stage(report: Report, name: str) -> Iterator[None]:
    """Note how long the block took, interrupted or not."""
    start = time.perf_counter()
    try:
        yield
    finally:
        report.seconds[name] = time.perf_counter() - start


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
