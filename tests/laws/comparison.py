"""Comparing a result with what an oracle says: structure first, then the mask, then the specified values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad import MaskedTensor

__all__ = [
    "HALVES",
    "NUMBER",
    "TOLERANCES",
    "assert_gradients",
    "assert_result",
    "assert_same_bits",
    "parts_of",
]

#: The only tolerances of the laws: (relative, absolute), by dtype. A filled copy may be laid out otherwise than
#: the sample, and vectorised and scalar loops of torch differ in the last bits.
TOLERANCES = {
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float32: (4e-6, 1e-5),
    torch.float64: (1e-10, 1e-10),
    torch.complex32: (2e-3, 1e-3),
    torch.complex64: (4e-6, 1e-5),
    torch.complex128: (1e-10, 1e-10),
}
EXACT = (0.0, 0.0)
#: In place of a mask, by identity: the result is a number, a plain tensor without dimensions.
NUMBER = torch.ones((), dtype=torch.bool)
HALVES = (torch.float16, torch.bfloat16)
#: How many times larger they are for operations that amplify rounding errors.
AMPLIFIED = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 64, torch.complex64: 64}


def parts_of(result: Any) -> list[Any]:
    """A result as a list: one tensor, or a tuple or list of them, perhaps nested (the edges of a histogram)."""
    return (
        [part for inner in result for part in parts_of(inner)]
        if isinstance(result, (tuple, list))
        else [result]
    )


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


def assert_gradients(
    found: Sequence[Tensor | None], expected: Sequence[Tensor | None], what: str, amplified: bool = False
) -> None:
    """Gradients agree; None stands for zero, in both."""
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None and other is None:
            continue
        reference = one if other is None else other
        pair = [torch.zeros_like(reference) if grad is None else grad for grad in (one, other)]
        assert_close(*pair, f"{what}: gradient of operand {i}", amplified=amplified)


def assert_close(
    found: Tensor, expected: Tensor, what: str, exact: bool = False, amplified: bool = False
) -> None:
    # what is not equal, or holds a NaN, is looked at closely
    same_kind = found.dtype == expected.dtype and found.layout == expected.layout == torch.strided
    if same_kind and found.dtype is not torch.complex32 and torch.equal(found, expected):
        return
    rtol, atol = tolerances(expected, amplified) if not exact else EXACT
    torch.testing.assert_close(
        found.detach(),
        expected.detach(),
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )


def tolerances(expected: Tensor, amplified: bool) -> tuple[float, float]:
    """The relative and the absolute tolerance for what is expected."""
    rtol, atol = TOLERANCES.get(expected.dtype, EXACT)
    if not amplified:
        return rtol, atol
    factor = AMPLIFIED.get(expected.dtype, 1)
    if expected.dtype in HALVES and expected.numel():
        # where terms cancel, what is left carries the rounding of the terms, which are as large as other results
        largest = float(expected.detach().to_dense().nan_to_num(0, 0, 0).abs().amax())
        return rtol * factor, factor * max(atol, rtol * largest)
    return rtol * factor, atol * factor


def assert_same_bits(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], what: str) -> None:
    """Not a single bit differs (NaN equals NaN)."""
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None and other is None:
            continue
        assert one is not None, f"{what} {i}: it does not exist"
        assert other is not None, f"{what} {i}: it should not exist"
        assert_close(one, other, f"{what} {i}", exact=True)
