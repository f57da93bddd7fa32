"""What is done on stored values costs what they cost, whatever the shape: nothing is ever spread out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.conversion import pattern_of_places
from tests.laws.storage.expectations import Operation, World
from tests.laws.storage.layouts import BSC, BSR, COO, CSC, CSR
from tests.laws.storage.operations import OPERATIONS

SIZE, ENTRIES = 100_000, 2_000
#: One dense vector of this side, or three columns; a whole row of blocks. Far below SIZE².
LIMIT = 10 * SIZE

#: Losses and reductions come in many forms that share their code; of these one is enough. What needs a dense operand
#: of the whole shape, or asks for a Boolean of the whole shape, has none here.
WITHOUT_DENSE = (
    " dense", "where", "x[mask]", "row - x", "dense - x", "expand", "minus", "prelu", "unbind", "split",
)  # fmt: skip


class Bounded(TorchDispatchMode):
    """Raises as soon as a tensor has more entries than there may be."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in torch.utils._pytree.tree_leaves(result):
            # tensors on "meta" have a shape and no memory: they say what PyTorch makes of the shape
            is_whole = (
                isinstance(part, torch.Tensor) and part.layout == torch.strided and part.numel() > LIMIT
            )
            if is_whole and not part.is_meta:
                raise AssertionError(f"{func} made {tuple(part.shape)}")
        return result


def large(layout: torch.layout, seed: int) -> MaskedTensor:
    torch.manual_seed(seed)
    keys = torch.randint(SIZE * SIZE, (ENTRIES,)).unique()
    places = torch.stack([keys // SIZE, keys % SIZE])
    blocksize = (1, 1) if layout in (BSR, BSC) else None
    pattern, _ = pattern_of_places(places, (SIZE, SIZE), layout, blocksize)
    values = torch.rand(keys.shape[0], dtype=torch.float64) + 0.5
    return MaskedTensor(pattern.gathered(values), pattern).requires_grad_()


def of_large_tensors(operation: Operation) -> bool:
    return (
        not any(word in operation.name for word in WITHOUT_DENSE)
        and not operation.name.startswith(
            ("dot", "outer", "x @ batch", "div by", "linear w", "unflatten", "permute")
        )
        and operation.name not in ("chunk", "x[rows]")
    )


@pytest.mark.parametrize("layout", [COO, CSR, CSC, BSR, BSC])
def test_no_operation_allocates_the_shape(layout: torch.layout) -> None:
    x, same, other = large(layout, 0), large(layout, 0), large(layout if layout in (CSR, CSC) else COO, 1)
    right, row = torch.rand(SIZE, 3, dtype=torch.float64), torch.rand(SIZE, dtype=torch.float64)
    partner = mg.masked(right, right > 0.5)
    world = World(x, same, other, None, row, right, partner)
    tried = 0
    for operation in OPERATIONS:
        if not of_large_tensors(operation) or (operation.name in ("linear input",)):
            continue
        with Bounded():
            result = operation.run(world)
            parts = list(result) if isinstance(result, (tuple, list)) else [result]
            moving = [p for p in parts if p.requires_grad]
            if moving and operation.order:
                values = [p._values if isinstance(p, MaskedTensor) else p for p in moving]
                seeds = [torch.ones_like(v) for v in values]
                torch.autograd.grad(values, [x._values], seeds, allow_unused=True)
        tried += 1
    assert tried > 120


def test_the_guard_can_fail() -> None:
    with Bounded(), pytest.raises(AssertionError, match="made"):
        torch.zeros(LIMIT + 1)


def test_a_backward_pass_from_stored_entries_allocates_nothing() -> None:
    x = large(CSR, 0)
    with Bounded():
        (x * 2).backward(x.detach())
    assert x.grad.layout == CSR
    torch.testing.assert_close(x.grad._values, 2 * x.detach()._values)
