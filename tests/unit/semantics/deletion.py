"""Law 3 spelled out for unit tests: contents with garbage under the mask, and torch's result on what is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import maskgrad as mg
from tests.laws.any_type.operands import GARBAGE, garbage_of
from tests.laws.deletion_cases import contents

__all__ = ["FLOATS", "NUMBERS", "Data", "assert_parts", "data"]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NUMBERS = (*FLOATS, torch.int64, torch.uint8)


class Data(NamedTuple):
    """Clean values and their mask, and the masked tensor in which garbage replaces what is not specified."""

    x: Tensor
    mask: Tensor
    masked: mg.MaskedTensor


def data(
    dtype: torch.dtype, shape: tuple[int, ...] = (4, 6), kinds: str = "ordinary ties specials"
) -> Iterator[Data]:
    """Numbers of each kind, from fully specified to not at all; one row and one column always hold nothing."""
    generator = torch.Generator().manual_seed(0)
    garbage = itertools.cycle(GARBAGE)
    for kind, density in itertools.product(kinds.split(), (0.7, 0.4, 0.0, 2.0)):
        if kind == "specials" and not dtype.is_floating_point:
            continue
        x = contents(kind, shape, torch.float64, generator)
        x = (x > 0) if dtype == torch.bool else x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)
        mask = torch.rand(shape, generator=generator) < density
        if density < 1:
            for dim in range(len(shape)):
                mask.select(dim, 1).fill_(False)
        # a view whose strides are not those of contiguous memory
        hidden = torch.where(mask, x, garbage_of(next(garbage), dtype)).mT.contiguous().mT
        if dtype.is_floating_point:
            hidden.requires_grad_()
        yield Data(x, mask, mg.masked(hidden, mask))


def assert_parts(
    found: object, expected: list[tuple[Tensor, Tensor]], what: Callable[[], str], rounding: float = 0
) -> None:
    """The masks first, then the specified values, to the bit or up to rounding (NaN equals NaN)."""
    parts = list(found) if isinstance(found, tuple) else [found]
    assert len(parts) == len(expected)
    for part, (values, mask) in zip(parts, expected, strict=True):
        assert isinstance(part, mg.MaskedTensor), what()
        assert part.shape == mask.shape, what()
        assert torch.equal(part.mask, mask), what()
        assert part.dtype == values.dtype, what()
        torch.testing.assert_close(
            part.compressed().detach(),
            values[mask].detach(),
            rtol=rounding,
            atol=rounding,
            equal_nan=True,
            msg=lambda m: f"{what()}: {m}",
        )
