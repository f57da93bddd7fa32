"""Connectionist temporal classification: unspecified time steps and labels are deleted, classes ignored in alignments.

- A time step without any specified class is deleted: the sequence is shorter.
- A label that is unspecified is deleted from the target.
- Alignments through an unspecified class do not count. A sequence that loses all of its alignments
  is unspecified; so is one that loses all time steps, or all labels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.mode import can_read
from maskgrad.semantics.dimensions import specified_first
from maskgrad.semantics.entries import Entries, Operand, mask_of, values_of
from maskgrad.semantics.losses.reduction import loss_record, reduce_loss

#: The log-probability of an absent class. Its exponential is 0; unlike -inf, it has differences.
ABSENT = -1e30


def ctc_loss(
    log_probs: Operand,
    targets: Operand,
    input_lengths: Any,
    target_lengths: Any,
    reduction: str,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Operand:
    """The negative log-likelihood of each target; the mean first divides each by its remaining length."""
    values, classes = values_of(log_probs), mask_of(log_probs)
    single = values.ndim == 2
    if single:
        values, classes = values.unsqueeze(1), classes.unsqueeze(1)
    times, times_known = read_lengths(input_lengths, values.device)
    sizes, sizes_known = read_lengths(target_lengths, values.device)
    steps = classes.any(-1) & (torch.arange(len(values), device=values.device).unsqueeze(-1) < times)
    labels, count = delete_labels(targets, sizes, sizes_known, single)
    remaining = steps.sum(0)
    known = times_known & sizes_known & ((remaining > 0) | (times == 0)) & ((count > 0) | (sizes == 0))
    # torch refuses invalid lengths.
    remaining = torch.where((times < 0) | (times > len(values)), times, torch.where(known, remaining, 0))
    if isinstance(log_probs, Entries):
        order = specified_first(steps, 0).unsqueeze(-1).expand(values.shape)
        values, classes = values.gather(0, order), classes.gather(0, order)
        # Present classes have probability 1, absent ones 0: an alignment remains if the sum over them is not 0. Nor is
        # there any, and the loss is infinite as in torch, if the sequence is too short for its target.
        present = torch.zeros_like(values).masked_fill(~classes, ABSENT)
        obstacles = F.ctc_loss(present, labels, remaining, count, blank, "none")
        known = known & ((obstacles <= 0) | torch.isinf(obstacles))
    values = torch.where(known.unsqueeze(-1), torch.where(classes, values, ABSENT), 0)
    loss = F.ctc_loss(values, labels, remaining, count, blank, "none", zero_infinity)
    if reduction == "mean":
        loss = loss / count.clamp(min=1)
    if single and reduction == "none":
        loss, known = loss.squeeze(0), known.squeeze(0)
    return reduce_loss(Entries(loss, known), reduction)


def read_lengths(lengths: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """The lengths as a vector, 0 where unspecified, and which of them are specified."""
    if not isinstance(lengths, (Entries, torch.Tensor)):
        lengths = torch.tensor(lengths, dtype=torch.int64)
    values, known = values_of(lengths).reshape(-1).to(device), mask_of(lengths).reshape(-1).to(device)
    return torch.where(known, values, 0), known


def delete_labels(
    targets: Operand, sizes: Tensor, sizes_known: Tensor, single: bool
) -> tuple[Tensor, Tensor]:
    """Each target without its unspecified labels, and the remaining lengths."""
    labels, listed = values_of(targets), mask_of(targets)
    if labels.ndim == 1 and not single:
        return _delete_concatenated(labels, listed, sizes, sizes_known)
    if single:
        labels, listed = labels.reshape(1, -1), listed.reshape(1, -1)
    width = labels.shape[1]
    kept = listed & (torch.arange(width, device=labels.device) < sizes.unsqueeze(-1))
    count = torch.where((sizes < 0) | (sizes > width), sizes, kept.sum(1))
    return torch.where(listed, labels, 0).gather(1, specified_first(kept, 1)), count


def _delete_concatenated(
    labels: Tensor, listed: Tensor, sizes: Tensor, sizes_known: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for concatenated targets, which begin where their lengths say."""
    if can_read(sizes) and not bool(sizes_known.all()):
        raise UndefinedOnMaskedError(
            "nn.functional.ctc_loss",
            "concatenated targets need complete target_lengths",
            "Pass targets of shape (N, S).",
        )
    place = torch.arange(len(labels), device=labels.device)
    owner = torch.searchsorted(sizes.cumsum(0), place, right=True)
    count = torch.zeros_like(sizes).index_add(0, owner.clamp(max=len(sizes) - 1), listed.to(sizes.dtype))
    return labels[listed], count


PATTERN = "per sequence: a time step, a label and an alignment remain; reduced: a plain scalar"
GRADIENT = "torch's, over the remaining time steps, classes and labels"
OPERATIONS = (loss_record(F.ctc_loss, ctc_loss, GRADIENT, PATTERN, widens=False),)
