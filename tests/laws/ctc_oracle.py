"""Connectionist temporal classification, sequence by sequence: torch's own, of what is left of it."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.reduced import Named, reduced

__all__ = ["ctc"]


def ctc(a: Named) -> tuple[Tensor, Tensor]:
    """Delete time steps and labels; then add up the alignments through specified classes only."""
    x, present = a["log_probs"], a.masks["log_probs"]
    single = x.ndim == 2
    if single:
        x, present = x.unsqueeze(1), present.unsqueeze(1)
    times, times_known = lengths_of(a, "input_lengths")
    sizes, sizes_known = lengths_of(a, "target_lengths")
    labels, listed = a["targets"], a.masks["targets"]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    losses: list[Tensor | None] = []
    for n, (length, size) in enumerate(zip(times, sizes, strict=True)):
        if not (times_known[n] and sizes_known[n]):
            losses.append(None)
            continue
        row = (
            (labels[n], listed[n])
            if labels.ndim == 2
            else (part[starts[n] : starts[n] + size] for part in (labels, listed))
        )
        target, kept = (part[:size] for part in row)
        steps = present[:length, n].any(-1)
        if (length and not steps.any()) or (size and not kept.any()):
            losses.append(None)
            continue
        one = negative_log_likelihood(
            x[:length, n][steps], present[:length, n][steps], target[kept], a["blank"], a["zero_infinity"]
        )
        if one is not None and a["reduction"] == "mean":
            one = one / max(len(target[kept]), 1)
        losses.append(one)
    return reduced(losses, () if single else (len(times),), a["reduction"], x.dtype)


def lengths_of(a: Named, name: str) -> tuple[list[int], list[bool]]:
    values, masks = a[name], a.masks[name]
    if not isinstance(values, Tensor):
        return list(values), [True] * len(values)
    return values.reshape(-1).tolist(), masks.reshape(-1).tolist()


def negative_log_likelihood(
    x: Tensor, present: Tensor, target: Tensor, blank: int, zero_infinity: bool
) -> Tensor | None:
    """torch's, of classes without any chance; None if every alignment leads through one of them."""
    wanted = target.tolist()
    repeats = sum(a == b for a, b in itertools.pairwise(wanted))
    if len(x) < len(wanted) + repeats:  # there is no alignment at all
        return x.sum() * 0 if zero_infinity else x.new_full((), float("inf"))
    scores = torch.where(present, x, -torch.inf).unsqueeze(1)
    loss = F.ctc_loss(scores, target[None], (len(x),), (len(wanted),), blank, reduction="sum")
    return loss if loss.isfinite() else None
