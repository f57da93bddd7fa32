"""``torch.testing.assert_close`` of MaskedTensors: layouts and masks first, then the specified entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.testing._comparison import ErrorMeta, Pair, TensorLikePair

from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["originate_pairs"]


def originate_pairs(
    original: Callable[..., Sequence[Pair]], actual: Any, expected: Any, *, id: Any = (), **options: Any
) -> Sequence[Pair]:
    """Replace ``originate_pairs``, which traverses dataclasses: compare masks, then values, 0 where unspecified."""
    masked = [isinstance(x, MaskedTensor) for x in (actual, expected)]
    if not any(masked):
        return original(actual, expected, id=id, **options)
    if not all(masked):
        raise ErrorMeta(
            TypeError,
            "a MaskedTensor must be compared with another MaskedTensor, found "
            f"{type(actual).__name__} and {type(expected).__name__}. Use assert_close(x.filled(value), plain), or "
            "assert_close(x, mg.masked(plain, mask)).",
            id=id,
        )
    pairs = original(actual.filled(0), expected.filled(0), id=id, **options)
    (pair,) = pairs
    compare_values = pair.compare

    def compare_masks_first() -> None:
        layouts = actual.layout, expected.layout
        if options.get("check_layout", True) and layouts[0] != layouts[1]:
            words = f"The values for attribute 'layout' do not match: {layouts[0]} != {layouts[1]}."
            pair._fail(AssertionError, words)
        if actual.shape == expected.shape:
            try:
                device = {"check_device": options.get("check_device", True)}
                TensorLikePair(actual.mask, expected.mask, id=id, rtol=0.0, atol=0.0, **device).compare()
            except ErrorMeta as error:
                pair._fail(error.type, f"The masks do not match (True where specified): {error.msg}")
        compare_values()

    pair.compare = compare_masks_first  # type: ignore[method-assign]
    return pairs
