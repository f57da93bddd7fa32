"""Attention over packed rows: both bodies against a loop over sequences, heads and queries in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.kernels import ragged_scaled_dot_product_attention, served_rows, use_kernels
from maskgrad.kernels.attention import is_packed
from tests.unit.kernels.attention_by_loop import by_loop, offsets_of, twice

BODIES = ["reference", "cpu"]
#: Lengths of queries, and of the keys of another set of sequences.
LENGTHS = {
    "mixed": ([3, 0, 5, 5, 2, 1], [2, 3, 0, 5, 6, 1]),
    "all empty": ([0, 0], [2, 0]),
    "no sequences": ([], []),
    "one token": ([1], [3]),
    "equal": ([4, 4, 4], [2, 2, 2]),
    "empty first": ([0, 7], [3, 0]),
}
KINDS = [
    *("", "causal", "(L,S)", "(B,1,L,S)", "(B,H,L,S)", "(H,L,S)", "(B,1,1,S)"),
    *("added (L,S)", "added (B,H,L,S)", "added (L,1)"),
]


def mask_of(kind: str, lengths: dict[str, int]) -> Tensor | None:
    """Masks of all shapes; some queries have no key. What is added may learn."""
    if kind in ("", "causal"):
        return None
    letters = kind.removeprefix("added ").strip("()").split(",")
    allowed = torch.rand([lengths.get(letter, 1) for letter in letters]) < 0.4
    if "added" not in kind:
        return allowed
    return torch.where(allowed, torch.randn(allowed.shape, dtype=torch.float64), -torch.inf).requires_grad_()


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crossed", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("case", LENGTHS)
def test_values_and_derivatives_are_those_of_a_loop_over_sequences(
    body: str, kind: str, crossed: bool, case: str
) -> None:
    """Of other keys all heads share one, and the values have another size."""
    lengths, key_lengths = LENGTHS[case][0], LENGTHS[case][crossed]
    offsets = offsets_of(lengths)
    key_offsets = offsets_of(key_lengths) if crossed else offsets
    longest, longest_key = max(lengths, default=0) + 1, max(key_lengths, default=0) + 2
    mask = mask_of(kind, {"B": len(lengths), "H": 2, "L": longest, "S": longest_key})
    shapes = [
        (int(offsets[-1]), 2, 5),
        *((int(key_offsets[-1]), 2 - crossed, 5 - n * crossed) for n in (0, 1)),
    ]
    rows = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    leaves = rows if mask is None or mask.dtype == torch.bool else [*rows, mask]
    full = None if mask is None else mask.expand(*mask.shape[:-1], longest_key)
    scale = 0.7 if kind == "(L,S)" else None
    with use_kernels(body):
        found = ragged_scaled_dot_product_attention(
            *rows, offsets, key_offsets, longest, longest_key, full,
            is_causal=kind == "causal", scale=scale, enable_gqa=crossed,
        )  # fmt: skip
    expected = by_loop(*rows, offsets, key_offsets, full, kind == "causal", scale)
    torch.testing.assert_close(found, expected, equal_nan=False)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        derivatives = twice(found, leaves)
    for one, other in zip(derivatives, twice(expected, leaves), strict=True):
        torch.testing.assert_close(one, other, equal_nan=False)
    served = served_rows(offsets, key_offsets, longest, longest_key, len(found), full)
    if served is None:
        assert kind in ("", "causal")
        assert not crossed
    else:  # a weighted sum of random numbers is no zero
        assert torch.equal(served.expand(found.shape[:2]), (expected != 0).any(-1))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 3, 8, 17])
def test_packed_projections_of_each_dtype_and_head_size(body: str, dtype: torch.dtype, size: int) -> None:
    offsets = offsets_of([40, 3, 0, 17, 17])
    packed = torch.randn(77, 3, 2, size).to(dtype).requires_grad_()
    with use_kernels(body):
        found = ragged_scaled_dot_product_attention(*packed.unbind(1), offsets, offsets, 40, 40)
    assert found.dtype == dtype
    expected = by_loop(*packed.unbind(1), offsets, offsets, None, False, None)
    tol = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tol, atol=tol)
    ones = (found * torch.linspace(-1, 1, size)).sum(), (expected * torch.linspace(-1, 1, size)).sum()
    one, other = (torch.autograd.grad(x, packed)[0].double() for x in ones)
    torch.testing.assert_close(one, other, rtol=8 * tol, atol=8 * tol)


@pytest.mark.parametrize("body", BODIES)
def test_what_nobody_uses_may_hold_anything(body: str) -> None:
    offsets, key_offsets = offsets_of([2, 0, 2]), offsets_of([0, 2, 2])
    rows = [torch.randn(4, 1, 3, requires_grad=True) for _ in range(3)]
    with torch.no_grad():
        for x in rows:
            x[:2] = torch.nan
    with use_kernels(body):
        found = ragged_scaled_dot_product_attention(*rows, offsets, key_offsets, 2, 2)
    assert not found[:2].any()
    gradients = torch.autograd.grad(found.square().sum(), rows)
    for x in gradients:
        assert not x[:2].any()
        assert x[2:].isfinite().all()
    # and a query that a mask leaves without keys
    forbidden = torch.tensor([[False, False], [True, True]])
    query = torch.tensor([[[torch.inf]], [[1.0]]], requires_grad=True)
    key, value = (torch.randn(2, 1, 1, requires_grad=True) for _ in range(2))
    with use_kernels(body):
        found = ragged_scaled_dot_product_attention(
            query, key, value, *[offsets_of([2])] * 2, 2, 2, forbidden
        )
    assert found[0].item() == 0
    for x in torch.autograd.grad(found.sum(), (query, key, value)):
        assert x.isfinite().all()


@pytest.mark.own_dtype("bfloat16", "float16")
def test_each_sequence_of_a_large_batch_gets_its_own_call() -> None:
    offsets = offsets_of(torch.randint(30, 129, (9,)).tolist())
    rows = [torch.randn(int(offsets[-1]), 4, 32, requires_grad=True) for _ in range(3)]
    assert is_packed(*rows, offsets, offsets, 128, 128, None)
    found = ragged_scaled_dot_product_attention(*rows, offsets, offsets, 128, 128)
    gradients = torch.autograd.grad(found.sum(), rows)  # a gradient that is one number, expanded
    with use_kernels("reference"):
        expected = ragged_scaled_dot_product_attention(*rows, offsets, offsets, 128, 128)
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients, torch.autograd.grad(expected.sum(), rows), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("error", "text", "changed"),
    [
        (ValueError, r"packed rows \(N, H, E\).*got \(3, 2, 4\), \(3, 1, 4\).*enable_gqa", {"key": (3, 1, 4)}),
        (ValueError, "packed rows", {"query": (1, 3, 2, 4)}),
        (ValueError, "must divide that in query, found 3 and 2", {"key": (3, 3, 4), "enable_gqa": True}),
        (TypeError, "one dtype; got torch.float32, torch.float32 and torch.float64", {"value": torch.float64}),
        (ValueError, r"both be \(B \+ 1,\).*got \(3,\) and \(2,\)", {"key_offsets": torch.tensor([0, 3])}),
        (TypeError, "int64; got torch.int64 and torch.int32", {"key_offsets": torch.tensor([0, 2, 3]).int()}),
        (ValueError, "cannot both be given", {"attn_mask": torch.ones(2, 2), "is_causal": True}),
        (TypeError, "Boolean.*got torch.int64", {"attn_mask": torch.ones(2, 2).long()}),
        (ValueError, r"\(2, 2, 2, 2\); got \(3, 2\)", {"attn_mask": torch.ones(3, 2)}),
        (ValueError, "must broadcast", {"attn_mask": torch.ones(1, 1, 1, 2, 2)}),
    ],
)  # fmt: skip
@pytest.mark.own_dtype
def test_what_does_not_fit(error: type[Exception], text: str, changed: dict[str, Any]) -> None:
    given: dict[str, Any] = {name: torch.ones(3, 2, 4) for name in ("query", "key", "value")}
    given |= {"query_offsets": offsets_of([2, 1]), "key_offsets": offsets_of([2, 1])}
    for name, x in changed.items():
        given[name] = (
            torch.ones(x) if isinstance(x, tuple) else given["query"].to(x) if name == "value" else x
        )
    with pytest.raises(error, match=text):
        ragged_scaled_dot_product_attention(**given, longest_query=2, longest_key=2)
