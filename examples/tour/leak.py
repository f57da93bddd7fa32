"""The doctor reads a script that never heard of maskgrad, and names the line where padding leaks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg

from . import leaking
from .part import Column, Part

__all__ = ["fixed", "measure"]


def fixed(batch: dict[str, Tensor]) -> Tensor:
    """The same step with the mask in its mean."""
    hidden: Any = leaking.embed(batch["input_ids"])
    pooled = mg.functional.mean(hidden, 1, mask=batch["attention_mask"][..., None])
    return torch.nn.functional.cross_entropy(leaking.head(pooled), batch["label"])


def measure() -> Part:
    """Train the script, examine its step, and the same step fixed."""
    losses, batch = leaking.train(), leaking.batch_of()
    reports: dict[str, Any] = {}
    rows = {}
    for name, step in (("as it is", leaking.step), ("fixed", fixed)):
        start = time.perf_counter()
        reports[name] = mg.doctor.examine(step, batch, quick=True)
        seconds = time.perf_counter() - start
        rows[name] = {"findings": len(reports[name].findings), "seconds": seconds}
    found = reports["as it is"].findings
    lines = len(Path(leaking.__file__).read_text(encoding="utf-8").splitlines())
    said = f"{found[0].kind} at `{found[0].code}`" if found else "nothing"
    return Part(
        "leak",
        f"A script of {lines} lines learns (loss {losses[0]:.2f} to {losses[-1]:.2f}); the doctor finds {said}",
        {"findings": Column("{:.0f}"), "seconds": Column("{:.1f}")},
        rows,
    )
