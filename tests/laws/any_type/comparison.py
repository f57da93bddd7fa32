"""Comparing tensors: within the tolerances of their dtype, or bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["HALVES", "TOLERANCES", "assert_close", "assert_gradients", "assert_same_bits", "parts_of"]

#: The only tolerances of the laws: (relative, absolute), by dtype. A filled copy may have other strides than
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
HALVES = (torch.float16, torch.bfloat16)
#: Factor of the tolerances for operations that amplify rounding errors.
AMPLIFIED = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 64, torch.complex64: 64}


def parts_of(result: Any) -> list[Any]:
    """A result as a list: one tensor, or a tuple or list of them, possibly nested (the edges of a histogram)."""
    return (
        [part for inner in result for part in parts_of(inner)]
        if isinstance(result, (tuple, list))
        else [result]
    )


def assert_gradients(
    found: Sequence[Tensor | None], expected: Sequence[Tensor | None], what: str, amplified: bool = False
) -> None:
    """Assert that gradients agree; None is zero."""
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is not None and other is not None:
            assert_close(one, other, f"{what}: gradient of operand {i}", amplified=amplified)
            continue
        there = one if other is None else other
        if there is not None:
            zeros = torch.zeros_like(there)
            pair = (zeros, there) if one is None else (there, zeros)
            assert_close(pair[0], pair[1], f"{what}: gradient of operand {i}", amplified=amplified)


def assert_close(
    found: Tensor, expected: Tensor, what: str, exact: bool = False, amplified: bool = False
) -> None:
    """Raise AssertionError, starting with ``what``, if they differ by more than the tolerance."""
    # compare in detail if not equal, or with NaN
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
    """The relative and the absolute tolerance for the expected values."""
    rtol, atol = TOLERANCES.get(expected.dtype, EXACT)
    if not amplified:
        return rtol, atol
    factor = AMPLIFIED.get(expected.dtype, 1)
    if expected.dtype in HALVES and expected.numel():
        # after cancellation the rounding errors are those of the terms, which are as large as other results
        largest = float(expected.detach().to_dense().nan_to_num(0, 0, 0).abs().amax())
        return rtol * factor, factor * max(atol, rtol * largest)
    return rtol * factor, atol * factor


def assert_same_bits(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], what: str) -> None:
    """Assert equality bit for bit (NaN equals NaN)."""
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None and other is None:
            continue
        assert one is not None, f"{what} {i}: it does not exist"
        assert other is not None, f"{what} {i}: it should not exist"
        assert_close(one, other, f"{what} {i}", exact=True)
