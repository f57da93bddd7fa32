"""What the demonstration found out, as far as it has come: numbers for people and for programs."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

import maskgrad as mg

from .memory import peak_memory
from .ratings import Ratings, Split
from .scores import Scores
from .step_timing import StepTimes, no_times
from .training import History

__all__ = ["METRICS", "THREADS", "Report", "Settings"]

METRICS = "metrics.json"
#: on how many cores PyTorch computes
THREADS = 1


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    epochs: int
    seed: int
    device: torch.device
    out: Path
    processes: int = 1


@dataclass
class Report:
    """Filled stage by stage; can be written at any time."""

    settings: Settings
    complete: bool = False
    ratings: Ratings | None = None
    split: Split | None = None
    #: on the held-out ratings, by name: the baselines, then the models
    scores: dict[str, Scores] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
    times: StepTimes = field(default_factory=no_times)
    #: how long each stage took
    seconds: dict[str, float] = field(default_factory=dict)

    def best_model(self) -> str | None:
        """The model with the best validation RMSE; the held-out ratings have no say in it."""
        trained = {name: history for name, history in self.histories.items() if history.kept}
        return min(trained, key=lambda name: trained[name].best_validation(), default=None)

    def median_ms(self, part: Literal["whole", "optimizer"]) -> dict[str, float]:
        """Milliseconds of a training step, or of its optimizer's part, by optimizer; empty before it is measured."""
        by_name: dict[str, list[float]] = getattr(self.times, part)
        return {name: statistics.median(times) * 1000 for name, times in by_name.items() if times}

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        best = self.best_model()
        return {
            "complete": self.complete,
            "rmse": self.scores[best].rmse if best in self.scores else None,
            "best_model": _key(best) if best else None,
            "held_out": {_key(name): asdict(scores) for name, scores in self.scores.items()},
            "best_epoch": {_key(name): history.best_epoch for name, history in self.histories.items()},
            "rmse_by_epoch": {
                _key(name): {
                    "training": history.training,
                    "validation": history.validation,
                    "held_out": history.held_out,
                }
                for name, history in self.histories.items()
            },
            "step": {
                "steps": min(len(times) for times in self.times.whole.values()),
                "whole_step_median_ms": self.median_ms("whole"),
                "optimizer_median_ms": self.median_ms("optimizer"),
            },
            "peak_memory_bytes": peak_memory(self.settings.device),
            "seconds": {_key(stage): seconds for stage, seconds in self.seconds.items()},
            "data": self._data(),
            "settings": {
                "epochs": self.settings.epochs,
                "seed": self.settings.seed,
                "device": str(self.settings.device),
                "threads": THREADS,
                "processes": self.settings.processes,
            },
            "kernels": mg.kernels_in_use(),
            "versions": {
                "maskgrad": mg.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
            },
        }

    def _data(self) -> dict[str, Any] | None:
        if self.ratings is None:
            return None
        parts = {}
        if self.split is not None:
            parts = {name: len(getattr(self.split, name)) for name in ("training", "validation", "held_out")}
        return {
            "name": "dslabs/movielens",
            "ratings": len(self.ratings),
            "users": self.ratings.num_users,
            "movies": self.ratings.num_movies,
            "missing": self.ratings.missing,
            **parts,
        }

    def write(self) -> Path:
        """Write :data:`METRICS`, and say where it is."""
        path = self.settings.out / METRICS
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")
        return path


def _key(name: str) -> str:
    """The name of a model as programs like it."""
    return name.replace(" ", "_")
