"""All ranks go on, or all raise: a mistake on one of them must not leave the others waiting."""

from __future__ import annotations

from typing import NoReturn

from maskgrad.distributed.process_group import ProcessGroup

__all__ = ["agree", "raise_everywhere"]

_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (IndexError, RuntimeError, TypeError, ValueError)
}
_REFUSES, _MEANS = "refuses", "means"


def agree(group: ProcessGroup, plan: str, refusal: Exception | None = None) -> None:
    """Return if all ranks have the same plan and none refuses; raise on every rank otherwise. Waits.

    Args:
        group: the ranks.
        plan: a text, part by part separated by ``"; "``, that must be the same on all of them.
        refusal: why this rank cannot go on.

    Raises:
        Exception: ``refusal`` where it was found; an error of the same type that quotes it, and names the rank,
            elsewhere.
        ValueError: the plans differ. The first difference is named.
    """
    told = _told(group, plan, refusal)
    if any(one != told[0] for one in told) or told[0].startswith(_REFUSES):
        _raise(group, told, refusal)


def raise_everywhere(group: ProcessGroup, plan: str, refusal: Exception | None) -> NoReturn:
    """Raise on all ranks, which know already that one refuses, or that their plans differ. As :func:`agree`."""
    _raise(group, _told(group, plan, refusal), refusal)


def _told(group: ProcessGroup, plan: str, refusal: Exception | None) -> list[str]:
    text = f"{_MEANS}\n{plan}" if refusal is None else f"{_REFUSES}\n{type(refusal).__name__}\n{refusal}"
    return group.gather_texts(text)


def _raise(group: ProcessGroup, told: list[str], refusal: Exception | None) -> NoReturn:
    if refusal is not None:
        raise refusal
    for rank, one in enumerate(told):
        if one.startswith(_REFUSES):
            _, kind, text = one.split("\n", 2)
            raise _KINDS.get(kind, RuntimeError)(
                f"{group.what}: rank {rank} cannot go on, so no rank does; nothing was changed. "
                f"It says: {kind}: {text}"
            )
    plans = [one.split("\n", 1)[1].split("; ") for one in told]
    other = next((rank for rank, plan in enumerate(plans) if plan != plans[0]), 0)
    here, there = _first_difference(plans[0], plans[other])
    raise ValueError(
        f"{group.what}: the ranks do not mean the same; nothing was changed. Rank 0 has {here}, rank {other} has "
        f"{there}; make them equal, in the same order on all ranks"
    )


def _first_difference(a: list[str], b: list[str]) -> tuple[str, str]:
    for left, right in zip(a, b, strict=False):
        if left != right:
            return left, right
    place = min(len(a), len(b))
    return (a[place] if place < len(a) else "nothing more"), (b[place] if place < len(b) else "nothing more")
