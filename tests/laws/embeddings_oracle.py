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
    """Each bag's rows are pooled column by column, over the specified entries."""
    (weight, index), (present, known) = args, masks
    factors, mode, padding = (
        options.get("per_sample_weights"),
        options.get("mode", "mean"),
        options.get("padding_idx"),
    )
    if factors is not None:
        known = known & option_masks["per_sample_weights"]
    weight = renormalised(weight, present, index[known], options)
    if index.ndim == 2:
        starts = torch.arange(len(index) + 1) * index.shape[1]
    else:
        starts = options["offsets"]
        starts = (
            starts if options.get("include_last_offset") else torch.cat([starts, torch.tensor([len(index)])])
        )
    flat, known = index.reshape(-1), known.reshape(-1)
    table = torch.zeros(len(flat), weight.shape[1], dtype=weight.dtype)
    there = known.unsqueeze(-1).expand(table.shape)
    table = table.masked_scatter(there, looked_up(flat[known], weight, options))
    padding = None if padding is None else padding % len(weight)
    values, specified = [], []
    for begin, end in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        inside = [i for i in range(begin, end) if known[i]]
        for d in range(weight.shape[1]):
            listed = [i for i in inside if present[flat[i], d]]
            specified.append(bool(listed))
            entries = [
                table[i, d] * (1 if factors is None else factors.reshape(-1)[i])
                for i in listed
                if flat[i] != padding
            ]
            values.append(pool(entries, mode) if entries else weight.new_zeros(()))
    shape = (len(starts) - 1, weight.shape[1])
    if not values:
        return weight.new_zeros(shape), [torch.zeros(shape, dtype=torch.bool)]
    return torch.stack(values).reshape(shape), [torch.tensor(specified).reshape(shape)]


def pool(entries: list[Tensor], mode: str) -> Tensor:
    column = torch.stack(entries)
    return column.sum() if mode == "sum" else column.mean() if mode == "mean" else column[column.argmax()]
