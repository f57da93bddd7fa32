"""Embeddings, index by index and bag by bag, without what is unspecified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry

__all__ = ["embedding"]

Result = tuple[Tensor, list[Tensor]]


def embedding(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """By the name of the operation."""
    (args, options), (arg_masks, option_masks) = call.with_tensors(leaves), call.with_tensors(masks)
    if entry.name == "nn.functional.one_hot":
        return one_hot(args[0], arg_masks[0], **options)
    if entry.name == "nn.functional.embedding":
        return rows(args, arg_masks, options)
    return bags(args, arg_masks, options, option_masks)


def one_hot(x: Tensor, mask: Tensor, num_classes: int) -> Result:
    classes = num_classes if num_classes >= 0 else int(torch.where(mask, x, 0).max()) + 1
    values = torch.where(mask, x, 0).unsqueeze(-1) == torch.arange(classes)
    return values.long(), [mask.unsqueeze(-1).expand(values.shape)]


def renormalised(weight: Tensor, present: Tensor, read: Tensor, options: dict[str, Any]) -> Tensor:
    """Rows that are read, scaled down to max_norm over their specified entries; the gradient knows nothing of it."""
    limit, order = options.get("max_norm"), options.get("norm_type", 2.0)
    if limit is None:
        return weight
    scaled = weight.detach().clone()
    for row in set(read.tolist()):
        entries = scaled[row][present[row]]
        length = torch.linalg.vector_norm(entries, order) if len(entries) else torch.zeros(())
        if length > limit:
            scaled[row, present[row]] = entries * (limit / (length + 1e-7))
    return scaled + (weight - weight.detach())


def looked_up(index: Tensor, weight: Tensor, options: dict[str, Any]) -> Tensor:
    keys = ("padding_idx", "scale_grad_by_freq", "sparse")
    return F.embedding(index, weight, **{key: options[key] for key in keys if key in options})


def rows(args: Any, masks: Any, options: dict[str, Any]) -> Result:
    (weight, index), (present, known) = args, masks
    weight = renormalised(weight, present, index[known], options)
    values = looked_up(index[known], weight, options)
    spread = torch.zeros(*index.shape, weight.shape[1], dtype=weight.dtype)
    known_rows = known.unsqueeze(-1).expand(spread.shape)
    mask = torch.zeros_like(known_rows).masked_scatter(known_rows, present[index[known]])
    return spread.masked_scatter(known_rows, values), [mask]


def bags(args: Any, masks: Any, options: dict[str, Any], option_masks: dict[str, Any]) -> Result:
    """Each column of the table by itself: torch's own bags of what is specified there."""
    (weight, index), (present, known) = args, masks
    options = {key: value for key, value in options.items() if key != "sparse"}
    factors, starts = options.pop("per_sample_weights", None), options.pop("offsets", None)
    if factors is not None:
        known = known & option_masks["per_sample_weights"]
    weight = renormalised(weight, present, index[known], options)
    if starts is None:
        starts = torch.arange(len(index)) * index.shape[1]
    elif options.pop("include_last_offset", False):
        starts = starts[:-1]
    options.pop("max_norm", None)
    flat, known = index.reshape(-1), known.reshape(-1)
    values, specified = [], []
    for column, there in zip(weight.unbind(1), present.unbind(1), strict=True):
        left = known & there[flat]
        before = torch.cat([torch.zeros(1, dtype=torch.int64), left.cumsum(0)])
        offsets = before[starts]
        inside = torch.cat([offsets, before[-1:]]).diff() > 0
        chosen = None if factors is None else factors.reshape(-1)[left]
        found = F.embedding_bag(flat[left], column[:, None], offsets, per_sample_weights=chosen, **options)
        values.append(found[:, 0])
        specified.append(inside)
    return torch.stack(values, 1), [torch.stack(specified, 1)]
