"""The steps whose costs the page "Measured facts" has."""

from __future__ import annotations

import torch

from benchmarks import facts
from benchmarks.provenance import provenance


def test_selections_agree_and_the_page_has_every_step() -> None:
    steps = [step for step in facts.steps() if not step.group.startswith("memory, 64")]
    page = facts.PAGE.read_text(encoding="utf-8")
    assert all(f"| {step.name} |" in page for step in steps)
    assert "| `x * 2` | 100 |" in facts.table(steps, [100.0] * len(steps), provenance())
    for group in {step.group for step in steps if step.group.startswith("replacing")}:
        where, *others = [step.call() for step in steps if step.group == group][:-1]
        for other in others:
            torch.testing.assert_close(other.view(torch.float32), where)
