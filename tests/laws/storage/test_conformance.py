"""Operations x patterns x {value, gradient, gradient of the gradient}: every layout agrees with the Boolean mask."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.laws.storage.expectations import Operation, World
from tests.laws.storage.jagged_results import layout_of_result
from tests.laws.storage.layouts import COO, CSR, JAGGED, STORAGES, Storage, boolean, entries_of, stored
from tests.laws.storage.operations import OPERATIONS

CASES = [
    pytest.param(operation, storage, id=f"{operation.name}-{storage.name}")
    for operation in OPERATIONS
    for storage in STORAGES
    if operation.fits(storage)
]


def leaves_of(storage: Storage, low: float) -> list[Tensor]:
    """x, same, other, dense, row, right: plain leaves."""
    torch.manual_seed(3)
    shape = storage.shape
    return [
        entries_of(storage, seed=1, low=low),
        entries_of(storage, seed=2, low=low),
        entries_of(storage.other(), seed=3, low=low),
        (torch.rand(shape, dtype=torch.float64) + 0.5).requires_grad_(),
        torch.rand(shape[-1:], dtype=torch.float64).requires_grad_(),
        torch.rand((*shape[:-2], shape[-1], 3), dtype=torch.float64).requires_grad_(),
    ]


def world(storage: Storage, leaves: list[Tensor], on_layout: bool) -> World:
    build = stored if on_layout else boolean
    x, same, other, dense, row, right = leaves
    return World(
        build(storage, x),
        build(storage, same),
        build(storage.other(), other),
        dense,
        row,
        right,
        mg.masked(right, partner_mask(right)),
    )


def partner_mask(right: Tensor) -> Tensor:
    return (torch.arange(right.numel()) % 4 > 0).reshape(right.shape)


def masks(storage: Storage, right: Tensor) -> World:
    mask = storage.whole_mask
    row = torch.ones(mask.shape[-1:], dtype=torch.bool)
    everywhere = torch.ones(right.shape, dtype=torch.bool)
    return World(
        mask, mask, storage.other().whole_mask, torch.ones_like(mask), row, everywhere, partner_mask(right)
    )


def parts_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def filled(part: mg.MaskedTensor | Tensor) -> Tensor:
    """0 for what is unspecified; a number is plain."""
    return part.filled(0) if isinstance(part, mg.MaskedTensor) else part


def derivatives(parts: list[Any], leaves: list[Tensor], order: int) -> list[Tensor]:
    """First and second derivatives of a weighted sum of all results."""
    torch.manual_seed(5)
    found: list[Tensor] = []
    total: Any = sum((torch.rand(part.shape, dtype=torch.float64) * filled(part)).sum() for part in parts)
    for _ in range(order):
        if not total.requires_grad:
            break
        grads = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        grads_or_zero = [
            torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves, strict=True)
        ]
        found += grads_or_zero
        total = sum((torch.rand(g.shape, dtype=torch.float64) * g).sum() for g in grads_or_zero)
    return found


# each operation on a layout of each kind (jagged: in front and elsewhere), and one for each initial on the others
@pytest.mark.layouts(
    per=lambda operation, storage: (
        operation.name if storage.layout in (COO, CSR, JAGGED) else operation.name[0],
        storage.layout,
        bool(storage.at),
    )
)
@pytest.mark.parametrize(("operation", "storage"), CASES)
def test_a_layout_agrees_with_the_boolean_mask(operation: Operation, storage: Storage) -> None:
    leaves = leaves_of(storage, operation.low)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of degrees of freedom
        results = [parts_of(operation.run(world(storage, leaves, on))) for on in (True, False)]
    known = masks(storage, leaves[5])
    wanted = parts_of(operation.mask(known))
    assert len(results[0]) == len(results[1]) == len(wanted)
    for part, plain, mask in zip(*results, wanted, strict=True):
        assert part.shape == mask.shape
        assert part.dtype == plain.dtype
        assert part.layout == layout_of_result(operation, storage, known, len(mask.shape))
        if operation.nothing is None:
            assert part.mask.tolist() == mask.tolist()
            assert plain.mask.tolist() == mask.tolist()
        else:
            assert type(part) is type(plain) is Tensor
            if not mask:
                torch.testing.assert_close(part, torch.full_like(part, operation.nothing), equal_nan=True)
        torch.testing.assert_close(filled(part), filled(plain), equal_nan=True)
    found = [derivatives(parts, leaves, operation.order) for parts in results]
    if len(found[0]) != len(found[1]):  # a derivative that does not depend on the leaves any more is zero
        found = [f + [torch.zeros_like(g) for g in found[1 - i][len(f) :]] for i, f in enumerate(found)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        if operation.nothing is not None and not wanted[0]:
            assert torch.count_nonzero(ours) == 0  # a NaN would be counted
