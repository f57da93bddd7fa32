"""Hooks that a step registers on tensors while it runs, and which of them nobody called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from maskgrad.doctor.findings import Finding
from maskgrad.doctor.frames import Place, here
from maskgrad.doctor.remedies import remedy_for

__all__ = ["TensorHooks"]


class TensorHooks:
    """Counts the calls of each hook that is registered with ``Tensor.register_hook`` by a line of the program."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._calls: list[int] = []

    def __enter__(self) -> TensorHooks:
        self._register = register = Tensor.register_hook

        def registered(tensor: Tensor, hook: Callable[..., Any]) -> Any:
            place = here()
            if place is None:
                return register(tensor, hook)  # type: ignore[no-untyped-call]
            number = len(self._calls)
            self._places.append(place)
            self._calls.append(0)

            def counted(*args: Any) -> Any:
                self._calls[number] += 1
                return hook(*args)

            return register(tensor, counted)  # type: ignore[no-untyped-call]

        Tensor.register_hook = registered  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Tensor.register_hook = self._register  # type: ignore[method-assign]

    def silent(self) -> list[Finding]:
        """A finding for each line of which no hook was called."""
        called = {place for place, calls in zip(self._places, self._calls, strict=True) if calls}
        return [
            Finding.at(
                place,
                "silent-hook",
                "a hook is registered here on a tensor that the loss does not use, and was not called",
                remedy=remedy_for("silent-hook"),
            )
            for place in dict.fromkeys(self._places)
            if place not in called
        ]
