"""Trainers of other libraries: a callback that watches the first steps of a training."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

from maskgrad.doctor.watching import Watch, watch
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
        if self.watched is not None and not self.watched.report.ok:
            warnings.warn(str(self.watched.report), UserWarning, stacklevel=2)


def huggingface_callback(**options: Any) -> Any:
    """A ``transformers.TrainerCallback`` that watches the first steps and warns of what it finds.

    Args:
        options: those of :func:`maskgrad.doctor.watch`.

    Raises:
        MissingDependencyError: Transformers is not installed.
    """
    base = _imported("transformers", "transformers").TrainerCallback
    watching = _Watching(options)

    class DoctorCallback(base):  # type: ignore[misc, valid-type]
        doctor = watching

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            watching.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            watching.look()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            watching.end()

    return DoctorCallback()


def lightning_callback(**options: Any) -> Any:
    """A Lightning ``Callback`` that watches the first steps and warns of what it finds.

    Args:
        options: those of :func:`maskgrad.doctor.watch`.

    Raises:
        MissingDependencyError: Lightning is not installed.
    """
    base = _imported("lightning", "lightning.pytorch", "pytorch_lightning").Callback
    watching = _Watching(options)

    class DoctorCallback(base):  # type: ignore[misc, valid-type]
        doctor = watching

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            watching.begin()

        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
            watching.look()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            watching.end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:  # noqa: ARG002
            watching.end()

    return DoctorCallback()


def _imported(package: str, *modules: str) -> Any:
    """The first of some modules that is there; no extra of ours brings trainers alone."""
    for module in modules:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            return importlib.import_module(module)
    remedy = f"which is not installed; install it with: pip install {package}"
    raise MissingDependencyError(package, "ecosystem", "the callback for its trainer", remedy)
