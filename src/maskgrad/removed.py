"""Names that were removed, each with what to write instead (``removed.json``); kept for one minor version."""

from __future__ import annotations

import json
from pathlib import Path

from maskgrad.other_names import instead_of_name

__all__ = ["missing_attribute", "removed_names"]


def removed_names() -> dict[str, dict[str, str]]:
    """Read what to write instead of each removed name, by module."""
    found: dict[str, dict[str, str]] = json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    )
    return found


def missing_attribute(module: str, name: str) -> AttributeError:
    """Create the error for ``module.name``, with what to write instead of a removed, foreign or misspelt name."""
    text = f"module {module!r} has no attribute {name!r}"
    instead = removed_names().get(module, {}).get(name)
    if instead:
        return AttributeError(f"{text}: it was removed in version 0.3; {instead}")
    meant = instead_of_name(name) if module == "maskgrad" else ""
    return AttributeError(f"{text}; did you mean {meant}?" if meant else text)
