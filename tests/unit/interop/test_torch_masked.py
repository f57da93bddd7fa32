"""Both ways between the two MaskedTensors, gradients included."""

from __future__ import annotations

import pytest
import torch
from torch.masked import MaskedTensor as TorchMasked
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
    mt = mg.interop.to_torch_masked(x)
    assert isinstance(mt, TorchMasked)
    assert mt.get_mask().equal(x.mask)  # the same polarity
    assert mt.dtype == dtype
    back = mg.from_torch_masked(mt)
    assert_entries(back, x.tolist(), dtype)
    assert back._values.data_ptr() == mt.get_data().data_ptr()


def test_nothing_to_convert() -> None:
    x = mg.masked(torch.empty(2, 0))
    assert mg.from_torch_masked(mg.interop.to_torch_masked(x)).shape == (2, 0)


def test_they_agree_on_what_they_compute() -> None:
    x = poisoned([[1.0, None, 3.0], [None, 5.0, 7.0]])
    mt = mg.interop.to_torch_masked(x)
    assert_entries(mg.from_torch_masked(mt.sum(1)), x.sum(1).tolist())
    assert_entries(mg.from_torch_masked(mt * 2), (x * 2).tolist())


@pytest.mark.parametrize("garbage", [nan, float("inf"), 1e38])
def test_gradients_reach_plain_tensors_as_plain_tensors(garbage: float) -> None:
    data = torch.tensor([1.0, garbage, 3.0], requires_grad=True)
    mt = mg.interop.to_torch_masked(mg.masked(data, on(1, 0, 1)) * 2)
    (mt * mt).sum().backward()
    assert type(data.grad) is torch.Tensor
    assert data.grad.tolist() == [8.0, 0.0, 24.0]


def test_gradients_reach_a_torch_masked_leaf() -> None:
    mt = masked_tensor(torch.tensor([1.0, nan, 3.0]), on(1, 0, 1), requires_grad=True)
    x = mg.from_torch_masked(mt)
    (x * torch.tensor([1.0, nan, 2.0])).sum().backward()
    assert mt.grad.get_data()[mt.get_mask()].tolist() == [1.0, 2.0]
    assert mt.grad.get_mask().equal(mt.get_mask())


def test_a_round_trip_inside_a_graph() -> None:
    data = torch.tensor([2.0, nan], requires_grad=True)
    x = mg.masked(data, on(1, 0))
    (mg.from_torch_masked(mg.interop.to_torch_masked(x**2)) * 3).sum().backward()
    assert data.grad.tolist() == [12.0, 0.0]


def test_expanded_masks() -> None:
    x = mg.from_lengths(
        torch.arange(4.0).reshape(2, 1, 2).transpose(1, 2).expand(2, 2, 3), torch.tensor([1, 2])
    )
    assert_entries(mg.from_torch_masked(mg.interop.to_torch_masked(x)), x.tolist())


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
    with pytest.raises(TypeError, match=r"x must be a MaskedTensor, found Tensor"):
        mg.interop.to_torch_masked(torch.ones(2))
    with pytest.raises(TypeError, match=r"strided layout"):
        mg.interop.to_torch_masked(poisoned([[1.0, None]]).to_sparse())
