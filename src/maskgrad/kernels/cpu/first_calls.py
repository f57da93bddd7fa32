"""Says once that kernels are being compiled: the first call on a machine takes seconds, and looks like a hang."""

from __future__ import annotations

import logging
import time
from typing import Any

from numba.core import event

LOGGER = logging.getLogger("maskgrad")


class _Told(event.Listener):
    """Adds up the time of what is compiled for maskgrad; functions inside of others are not counted again."""

    def __init__(self, patience: float = 1.0) -> None:
        self.patience = patience  # seconds of compiling after which it is said
        self._depth, self._start, self.seconds, self.said = 0, 0.0, 0.0, False

    def on_start(self, event: Any) -> None:  # noqa: ARG002
        if not self._depth:
            self._start = time.perf_counter()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        function = event.data["dispatcher"].py_func
        if self._depth or self.said or not function.__module__.startswith("maskgrad."):
            return
        self.seconds += time.perf_counter() - self._start
        if self.seconds > self.patience:
            self.said = True
            LOGGER.warning(
                "kernels are compiled for this machine on their first call, and kept on disk (%.0f s until now); "
                "`maskgrad warmup` does it ahead",
                self.seconds,
            )


def tell_of_compilation() -> None:
    """From now on a warning is logged, once, when compiling kernels has taken a second."""
    event.register("numba:compile", _Told())  # type: ignore[no-untyped-call]
