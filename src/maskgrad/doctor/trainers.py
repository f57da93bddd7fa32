"""Trainers of other packages: a callback that watches the first steps, and warns of what it finds."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable
from typing import Any

from maskgrad.doctor.hooks import watch
from maskgrad.doctor.report import Report
from maskgrad.doctor.watching import Watch
from maskgrad.errors import MissingDependencyError

__all__ = ["huggingface_callback", "lightning_callback"]


class _Watching:
    """Begins with the training, warns of what is found, ends when enough steps are seen."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._context: Any = None
        self.watched: Watch | None = None

    def begin(self) -> None:
        if self._context is None:
            self._context = watch(**self._options)
            self.watched = self._context.__enter__()

    def look(self) -> None:
        if self.watched is not None and self.watched.done:
            self.end()

    def end(self) -> None:
        if self._context is None:
            return
        context, self._context = self._context, None
        context.__exit__(None, None, None)
        report = self.watched.report if self.watched is not None else Report()
        # a training that fails says so itself, and why it was not examined
        if report.findings or (report.unexamined and sys.exc_info()[0] is None):
            warnings.warn(str(report), UserWarning, stacklevel=2)


def huggingface_callback(**options: Any) -> Any:
    """A ``transformers.TrainerCallback`` that watches the first steps and warns of what it finds.

    Transformers does not call callbacks when training fails: ``Trainer.train`` is wrapped once to end the watch
    then, too.

    Args:
        options: those of :func:`maskgrad.doctor.watch`.

    Raises:
        MissingDependencyError: Transformers is not installed.
    """
    transformers = _imported("transformers", "transformers")
    train = transformers.Trainer.train

    @functools.wraps(train)
    def watched_train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return train(trainer, *args, **kwargs)
        finally:
            for callback in trainer.callback_handler.callbacks:
                if isinstance(getattr(callback, "doctor", None), _Watching):
                    callback.doctor.end()

    if not hasattr(train, "ends_watches"):
        watched_train.ends_watches = True  # type: ignore[attr-defined]
        transformers.Trainer.train = watched_train
    return _callback(transformers.TrainerCallback, options, "on_train_begin", "on_step_end", "on_train_end")


def lightning_callback(**options: Any) -> Any:
    """A Lightning ``Callback`` that watches the first steps and warns of what it finds.

    Args:
        options: those of :func:`maskgrad.doctor.watch`.

    Raises:
        MissingDependencyError: Lightning is not installed.
    """
    base = _imported("lightning", "lightning.pytorch", "pytorch_lightning").Callback
    names = ("on_train_start", "on_train_batch_end", "on_train_end", "on_exception")
    return _callback(base, options, *names)


def _callback(base: Any, options: dict[str, Any], begin: str, look: str, *ends: str) -> Any:
    watching = _Watching(options)

    def calling(function: Callable[[], None]) -> Callable[..., None]:
        return lambda self, *args, **kwargs: function()  # noqa: ARG005

    methods = {begin: calling(watching.begin), look: calling(watching.look)}
    methods |= {end: calling(watching.end) for end in ends}
    return type("DoctorCallback", (base,), {"doctor": watching, **methods})()


def _imported(package: str, *modules: str) -> Any:
    """The first of some modules that is there; no extra of ours brings trainers alone."""
    for module in modules:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            return importlib.import_module(module)
    remedy = f"which is not installed; install it with: pip install {package}"
    raise MissingDependencyError(package, "ecosystem", "the callback for its trainer", remedy)
