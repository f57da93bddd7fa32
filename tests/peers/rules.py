"""Differences that are meant: at most forty, each with the rule that decides it. One that no case needs fails."""

from __future__ import annotations

from tests.peers.suite import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        ("awkward",),
        "a mean of integers is refused, where the peer gives a float",
        "as torch.mean: integers have no mean of their own dtype; write x.mean(dtype=torch.float64)",
        lambda case: case.startswith("mean int"),
    ),
)
