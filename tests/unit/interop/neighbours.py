"""Dtypes and columns that several of these tests share."""

from __future__ import annotations

import torch

nan, inf = float("nan"), float("inf")

INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
FLOATS = (torch.float16, torch.float32, torch.float64)
NUMBERS = (torch.bool, *INTEGERS, *FLOATS)

#: none missing, some missing, all missing, empty
COLUMNS = ([1, 0, 1], [1, None, 0], [None, None], [])


def as_dtype(entries: list[int | None], dtype: torch.dtype) -> list[int | float | bool | None]:
    """The entries as Python numbers of the kind that a tensor of ``dtype`` lists."""
    kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
    return [None if entry is None else kind(entry) for entry in entries]
