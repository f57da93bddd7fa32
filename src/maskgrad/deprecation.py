"""Deprecated names: they work until the version named in the warning, which says what to write instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["moved"]


def moved(
    module: str, names: Mapping[str, Callable[..., Any]], since: str, until: str
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``module`` that serves deprecated names, which are now in ``maskgrad`` only.

    Args:
        module: name of the old module.
        names: the objects by name; the names are the same in ``maskgrad``.
        since: version that introduced the warning, with its date.
        until: version in which the names are removed.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # FutureWarning, as users see it too, not only developers
        warnings.warn(
            f"{module}.{name} is deprecated since {since} and will be removed in {until}; use maskgrad.{name}",
            FutureWarning,
            stacklevel=2,
        )
        return names[name]

    return __getattr__
