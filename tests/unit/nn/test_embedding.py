"""mg.nn's tables are torch.nn's with a sparse gradient; what they add is in test_lookup.py.

Of half-precision tables it is float32: PyTorch cannot add up two sparse gradients of theirs on a CPU.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg

KINDS = pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
ROWS = torch.tensor([[1, 2, 1]])


@KINDS
@pytest.mark.parametrize("options", [{"scale_grad_by_freq": True}, {"mode": "max"}], ids=str)
def test_the_gradient_is_sparse_where_pytorch_has_one(kind: str, options: dict[str, Any]) -> None:
    table, (name,) = getattr(mg.nn, kind), options
    assert table(3, 2).sparse
    assert table.from_pretrained(torch.ones(3, 2)).sparse
    assert not table(3, 2, sparse=False).sparse
    if name in inspect.signature(table).parameters:
        assert not table(3, 2, **options).sparse
        with pytest.raises(ValueError, match=rf"sparse=True is not available with {name}=.*use sparse=False"):
            table(3, 2, sparse=True, **options)


@KINDS
def test_signatures_states_and_made_tables_are_pytorchs(kind: str) -> None:
    made, theirs = getattr(mg.nn, kind), getattr(nn, kind)
    assert [*inspect.signature(made).parameters] == [*inspect.signature(theirs).parameters]
    assert issubclass(made, theirs)  # DistributedDataParallel asks
    theirs(5, 2).load_state_dict(made(5, 2).state_dict())
    weight = torch.randn(5, 2)
    table = made.from_pretrained(weight, padding_idx=-1)
    assert (table.weight.requires_grad, table.padding_idx) == (False, 4)
    assert table.weight.data_ptr() == weight.data_ptr()
    assert torch.equal(made(3, 2, padding_idx=1).weight[1], torch.zeros(2))
    with pytest.raises(ValueError, match=r"embeddings must have two dimensions.*got shape \(4,\)"):
        made.from_pretrained(torch.ones(4))


@KINDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_of_several_uses_and_passes_add_up(kind: str, dtype: torch.dtype) -> None:
    made = getattr(mg.nn, kind)(5, 3, dtype=dtype, **({"mode": "sum"} if kind == "EmbeddingBag" else {}))
    for table in (made, copy.deepcopy(made)):
        for output in [table(ROWS) + table(ROWS), table(ROWS)]:
            output.sum().backward()
        assert table.weight.grad.dtype == torch.float32
        assert table.weight.grad.to_dense()[:, 0].tolist() == [0, 6, 3, 0, 0]
    before = table.weight.detach().clone()
    mg.optim.SGD(table.parameters(), lr=0.5).step()
    moved = (before - table.weight).detach().float()
    torch.testing.assert_close(moved[:, 0], torch.tensor([0, 3, 1.5, 0, 0]), atol=0.02, rtol=0)
    for convert, expected in ((table.double, torch.float64), (table.bfloat16, torch.float32)):
        convert()
        for _ in range(2):  # added to the one of before, and alone
            table(ROWS).sum().backward()
            assert table.weight.grad.dtype == expected
            table.zero_grad()
        table(ROWS).sum().backward()
    dense = getattr(mg.nn, kind)(5, 3, sparse=False, dtype=dtype)
    dense(ROWS).sum().backward()
    assert dense.weight.grad.dtype == dtype
