"""Sums of gradients of any two kinds mean the sum of what they mean."""

from __future__ import annotations

import pytest
import torch

from maskgrad.gradients.added import added
from tests.unit.distributed.kinds_of_gradients import KINDS, gradient, meaning_of

PRESENT = [kind for kind in KINDS if kind != "none"]


@pytest.mark.parametrize("one", PRESENT)
def test_any_two_kinds(one: str) -> None:
    for dtype in (torch.float32, torch.float16):
        for other in PRESENT:
            (left, meant), (right, also_meant) = gradient(one, 0, dtype), gradient(other, 1, dtype)
            total = added([left, right])
            if isinstance(total, torch.Tensor) and total.layout is torch.sparse_coo:
                total = total.coalesce()
            found = meaning_of(total)
            assert found is not None
            assert found.values.dtype is torch.float32
            mask = meant.mask | also_meant.mask
            assert torch.equal(found.mask, mask), other
            torch.testing.assert_close(
                found.values.double(), (meant.values + also_meant.values).double(), msg=f"{one} + {other}"
            )
