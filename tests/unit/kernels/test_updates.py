"""Updates of the touched rows in place; the optimizers are compared with PyTorch's by their suite, loops included."""

from __future__ import annotations

import pytest
import torch

from maskgrad.kernels import update_rows_, use_kernels


@pytest.mark.own_dtype("bfloat16", "float16")
def test_duplicates_are_rounded_once() -> None:
    param = torch.zeros(2)
    indices, values = torch.ones(4, dtype=torch.int64), torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert update_rows_("sgd", [param, None], indices, values, lr=1.0)
    assert param.tolist() == [0.0, -2.0]


@pytest.mark.own_dtype("bfloat16", "float16")
def test_a_saved_tensor_that_was_updated_is_noticed() -> None:
    param, state = torch.nn.Parameter(torch.randn(5, 2)), torch.zeros(5, 2)
    loss = (param * param * state).sum()
    tensors = param, state, torch.tensor([1, 1]), torch.ones(2, 2)
    versions = [t._version for t in tensors]
    numbers = {"lr": 0.1, "weight_decay": 0.0, "eps": 1e-10}
    assert update_rows_("adagrad", tensors[:2], *tensors[2:], **numbers)
    assert [t._version - v for t, v in zip(tensors, versions, strict=True)] == [1, 1, 0, 0]
    assert param.grad_fn is None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("index", [-1, 5])
@pytest.mark.parametrize("kernel", ["sgd", "adagrad", "rowwise_adagrad", "adam", "rmsprop"])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_an_index_outside_the_table_changes_nothing(kernel: str, index: int) -> None:
    numbers = {"lr": 0.1, "eps": 1e-8, "alpha": 0.9, "beta1": 0.9, "beta2": 0.99, "step": 3.0}
    tables = [torch.rand(5, 2), torch.rand(5) if "rowwise" in kernel else torch.rand(5, 2)]
    tables += [torch.rand(5, 2)] * {"adam": 2, "rmsprop": 1}.get(kernel, 0)
    before = [t.clone() for t in tables]
    with pytest.raises(IndexError, match=rf"must lie in \[0, 5\).*indices\[1\] is {index}"):
        update_rows_(kernel, tables, torch.tensor([0, index]), torch.ones(2, 2), **numbers)
    assert all(torch.equal(t, old) for t, old in zip(tables, before, strict=True))


def test_what_the_loops_do_not_support_is_not_written() -> None:
    indices, values, numbers = torch.tensor([2, 0, 2]), torch.randn(3, 4), {"lr": 0.3}
    wide = torch.randn(6, 8)
    for param in (wide[:, ::2], torch.ones(6, 4).bfloat16(), torch.ones(6, 4, dtype=torch.complex64)):
        before = param.clone()
        assert not update_rows_("sgd", [param, None], indices, values, **numbers)
        assert torch.equal(param, before)
    param = torch.ones(6, 4)
    with use_kernels("reference"):
        assert not update_rows_("sgd", [param, None], indices, values, **numbers)
    assert param.eq(1).all()
    assert not update_rows_("sgd", [param, None], indices[:0], values[:0], **numbers)


@pytest.mark.parametrize("width", [16, 17])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_many_rows_over_threads(width: int) -> None:
    """Of rows without a gradient Adagrad's step is none."""
    param, values = torch.randn(40_000, width), torch.randn(30_000, width)
    indices = torch.randint(0, 40_000, (30_000,))
    expected = param.clone().requires_grad_()
    optimizer = torch.optim.Adagrad([expected], lr=0.3, eps=1e-3)
    tables = [param, torch.zeros_like(param)]
    for _ in range(2):
        expected.grad = torch.zeros_like(param).index_add_(0, indices, values)
        optimizer.step()
        assert update_rows_("adagrad", tables, indices, values, lr=0.3, weight_decay=0.0, eps=1e-3)
    torch.testing.assert_close(param, expected.detach(), rtol=1e-4, atol=1e-4)
