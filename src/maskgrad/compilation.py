"""Count compilations, for tests and training loops in which masks change but graphs must not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["Compilations", "assert_no_recompile", "count_recompiles"]

#: Maximum number of reasons in a message.
LISTED = 5


class Compilations:
    """Compilations since :func:`count_recompiles` began; fixed once the block has ended."""

    def __init__(self) -> None:
        from torch._dynamo.callback import callback_handler
        from torch._dynamo.utils import counters, get_compilation_metrics

        self._handler, self._counters, self._metrics = callback_handler, counters, get_compilation_metrics
        self._noticed = 0
        self._frames_before = self._frames()
        self._metrics_before = list(get_compilation_metrics())  # kept, so that no identity is given twice
        self._xla_before = _xla_compilations()
        self._final: tuple[int, list[str]] | None = None
        callback_handler.register_start_callback(self._notice)

    @property
    def number(self) -> int:
        """Number of graphs compiled by torch.compile and PyTorch/XLA, failed attempts included."""
        return self._now()[0]

    @property
    def reasons(self) -> list[str]:
        """For each compilation in PyTorch's records: what was compiled, and why the existing graph did not fit."""
        return self._now()[1]

    def __int__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Compilations(number={self.number})"

    def stop(self) -> None:
        """Stop counting."""
        self._final = self._now()
        with suppress(ValueError):  # torch._dynamo.reset() has forgotten it
            self._handler.remove_start_callback(self._notice)

    def _now(self) -> tuple[int, list[str]]:
        if self._final is not None:
            return self._final
        # Take the maximum of both counts: torch._dynamo.reset() drops callbacks, users clear counters, and a function
        # that has reached the recompilation limit is counted, but no longer compiled.
        frames = self._frames() - self._frames_before
        dynamo = max(self._noticed, frames if frames >= 0 else self._frames())
        xla = max(_xla_compilations() - self._xla_before, 0)
        before = {id(m) for m in self._metrics_before}
        reasons = [_reason(m) for m in self._metrics() if id(m) not in before and m.co_name]
        if xla:
            reasons.append(f"PyTorch/XLA: {xla} graphs")
        return dynamo + xla, reasons

    def _frames(self) -> int:
        return int(self._counters["frames"]["total"])

    def _notice(self, event: Any = None) -> None:
        # a backward pass may be compiled on its first run; it belongs to a forward pass that was counted
        trigger = getattr(event, "callback_trigger", None)
        if trigger is None or trigger.name == "DYNAMO":
            self._noticed += 1


def _reason(metrics: Any) -> str:
    where = f"{metrics.co_name} ({metrics.co_filename}:{metrics.co_firstlineno})"
    why = getattr(metrics, "recompile_reason", None)
    if why:
        first = str(why).strip().splitlines()[0]
        return f"{where}: {' '.join(first.split())}"
    failed = getattr(metrics, "fail_reason", None)
    return f"{where}: {str(failed).splitlines()[0]}" if failed else f"{where}: compiled for the first time"


def _xla_compilations() -> int:
    """Number of graphs compiled by PyTorch/XLA; 0 if it has not been imported."""
    if "torch_xla" not in sys.modules:
        return 0
    from torch_xla.debug import metrics  # type: ignore[import-not-found, unused-ignore]

    data = metrics.metric_data("CompileTime")
    return int(data[0]) if data else 0


@contextmanager
def count_recompiles() -> Iterator[Compilations]:
    """Count what ``torch.compile`` and PyTorch/XLA compile inside a ``with`` block, first compilations included.

    Yields:
            An object with ``number`` and ``reasons`` (the messages of ``torch.compile``), to be read inside the
            block or after it. With graph breaks, each piece counts. A function that reached
            ``torch._dynamo.config.recompile_limit`` before the block runs uncompiled and is not counted.

    Example:
        >>> layer = torch.compile(torch.nn.Softplus(), backend="eager")
        >>> with mg.count_recompiles() as compiled:
        ...     for k in range(4):
        ...         _ = layer(mg.masked(torch.ones(4), torch.arange(4) < k))
        >>> compiled.number
        1
    """
    compilations = Compilations()
    try:
        yield compilations
    finally:
        compilations.stop()


@contextmanager
def assert_no_recompile() -> Iterator[None]:
    """Fail if ``torch.compile`` or PyTorch/XLA compile anything inside a ``with`` block.

    Call the compiled function once before; inside the block only masks and values may change.

    Raises:
        AssertionError: at the end of the block, if something was compiled in it; lists what was compiled and why
            the existing graph did not fit.

    Example:
        >>> layer = torch.compile(torch.nn.LayerNorm(4), backend="eager")
        >>> _ = layer(mg.masked(torch.ones(4), torch.arange(4) < 2))
        >>> with mg.assert_no_recompile():
        ...     _ = layer(mg.masked(torch.ones(4), torch.arange(4) < 3))
    """
    with count_recompiles() as compilations:
        yield
    number, reasons = compilations.number, compilations.reasons
    if not number:
        return
    lines = reasons[:LISTED] + ([f"… and {len(reasons) - LISTED} more"] if len(reasons) > LISTED else [])
    times = "once" if number == 1 else f"{number} times"
    raise AssertionError(
        f"compiled {times} in a block that must not compile"
        + "".join(f"\n  {line}" for line in lines)
        + "\nCall the function before the block, and pass what changes (masks, strengths, counts) as tensors"
    )
