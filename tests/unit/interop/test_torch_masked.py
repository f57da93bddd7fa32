"""From the other MaskedTensor, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch.masked import masked_tensor

import maskgrad as mg
from tests.poison import assert_entries, on, poisoned

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors is in prototype stage:UserWarning"),
    pytest.mark.filterwarnings(
        "ignore:It is not recommended to create a MaskedTensor with a tensor that requires_grad"
    ),
]
nan = float("nan")


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("entries", [[[1, None], [None, 0]], [[None, None]], [[1, 1]]])
def test_there_and_back(entries: list[list[int | None]], dtype: torch.dtype) -> None:
    x = poisoned(entries, dtype)
    mt = masked_tensor(x.filled(False), x.mask)
    back = mg.from_torch_masked(mt)
    assert_entries(back, x.tolist(), dtype)
    assert back._values.data_ptr() == mt.get_data().data_ptr()


def test_gradients_reach_a_torch_masked_leaf() -> None:
    mt = masked_tensor(torch.tensor([1.0, nan, 3.0]), on(1, 0, 1), requires_grad=True)
    x = mg.from_torch_masked(mt)
    (x * torch.tensor([1.0, nan, 2.0])).sum().backward()
    assert mt.grad.get_data()[mt.get_mask()].tolist() == [1.0, 2.0]
    assert mt.grad.get_mask().equal(mt.get_mask())


def test_other_kinds_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"mt must be a torch.masked.MaskedTensor, found Tensor; use mg.masked"
    ):
        mg.from_torch_masked(torch.ones(2))
    with pytest.raises(TypeError, match=r"found MaskedTensor; use mg.masked"):
        mg.from_torch_masked(poisoned([1.0, None]))
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(TypeError, match=r"strided layout, found torch.sparse_coo; use mt.to_dense"):
        mg.from_torch_masked(masked_tensor(sparse, sparse.bool()))
