"""Sums on sparse layouts in half precision."""

from __future__ import annotations

import pytest
import torch

from tests.laws.storage.layouts import Storage, stored

HALVES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_added_up_in_float32(dtype: torch.dtype) -> None:
    ones = Storage("ones", torch.ones(1, 4096, dtype=torch.bool), torch.sparse_csr)
    x = stored(ones, torch.ones(4096, dtype=dtype))
    for total in (x.sum(), x.sum(1).sum(), x.T.sum(0).sum(), (x @ torch.ones(4096, 1, dtype=dtype)).sum()):
        assert total.item() == 4096
        assert total.dtype == dtype
    assert (x @ x.T).sum().item() == 4096
    x = x * 300
    assert x.prod().item() == float("inf")
    assert torch.linalg.vector_norm(x).item() == pytest.approx(19200, rel=1e-2)
