"""All models that are examined, as (package, name, class)."""

from __future__ import annotations

__all__ = ["models"]


def models() -> list[tuple[str, str, str]]:
    """Architectures of transformers with each of their heads."""
    from benchmarks.wild.architectures import architectures

    found = [("transformers", name, head, place) for name, heads in architectures().items() for place, head in enumerate(heads)]
    return [item[:3] for item in sorted(found, key=lambda item: item[3])]
