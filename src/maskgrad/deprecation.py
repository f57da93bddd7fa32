"""Old names: they work until the version that is named, and say what to write instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["moved"]


def moved(
    module: str, names: Mapping[str, Callable[..., Any]], since: str, until: str
) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``module`` for public names that have their home in ``maskgrad`` alone.

    Args:
        module: name of the module that they have left.
        names: by their names, which are the same in ``maskgrad``.
        since: the version that brought the warning, with its date.
        until: the version in which they go.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # a warning for whoever wrote the line, once each: FutureWarning is shown to users, too
        warnings.warn(
            f"{module}.{name} is deprecated since {since} and goes in {until}: write maskgrad.{name}",
            FutureWarning,
            stacklevel=2,
        )
        return names[name]

    return __getattr__
