"""Why doctor and oracle disagree on a model, in one line each."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

#: by the name of the model; the last run had none
EXPLAINED: dict[str, str] = {}
