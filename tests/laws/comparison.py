"""Comparing a result with what an oracle says: structure first, then the mask, then the specified values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad import MaskedTensor
from tests.laws.any_type.comparison import assert_close, parts_of

__all__ = ["NUMBER", "assert_result"]

#: In place of a mask, by identity: the result is a number, a plain tensor without dimensions.
NUMBER = torch.ones((), dtype=torch.bool)


def assert_result(
    result: Any,
    values: Any,
    masks: Sequence[Tensor | None],
    what: str,
    exact: bool = False,
    amplified: bool = False,
) -> None:
    """``result`` is made of MaskedTensors with these masks, and with these values at the specified entries.

    None in place of a mask says that the result is plain, NUMBER that it is a number.
    """
    if isinstance(values, (tuple, list)):
        assert type(result) is type(values), (
            f"{what}: the result is a {type(result).__name__}, torch's {type(values).__name__}"
        )
        assert len(result) == len(values), f"{what}: {len(result)} results instead of {len(values)}"
    for i, (part, value, mask) in enumerate(zip(parts_of(result), parts_of(values), masks, strict=True)):
        here = f"{what}, result {i}" if isinstance(values, (tuple, list)) else what
        if mask is None:
            assert type(part) is type(value), f"{here}: the result is a {type(part).__name__}"
            assert_close(torch.as_tensor(part), torch.as_tensor(value), here, exact=True)
            continue
        if mask is NUMBER:
            assert type(part) is Tensor, f"{here}: the result is a {type(part).__name__}, not a number"
            assert (part.shape, part.dtype) == ((), value.dtype), f"{here}: {part.dtype}, {tuple(part.shape)}"
            assert_close(part, value, f"{here}: the number", exact, amplified)
            continue
        assert isinstance(part, MaskedTensor), f"{here}: the result is a {type(part).__name__}"
        assert part.dtype == value.dtype, f"{here}: dtype {part.dtype} instead of {value.dtype}"
        assert part.shape == value.shape, f"{here}: shape {tuple(part.shape)} instead of {tuple(value.shape)}"
        assert part.mask.shape == mask.shape, f"{here}: mask of shape {tuple(part.mask.shape)}"
        wrong = part.mask != mask
        assert not wrong.any(), (
            f"{here}: the masks differ at {int(wrong.sum())} entries, first {wrong.nonzero()[:1].tolist()}"
        )
        assert_close(part.compressed(), value[mask], f"{here}: values", exact, amplified)
