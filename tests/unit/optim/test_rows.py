"""Steps that are refused, interrupted, differentiated: as a whole, and counted for those that had one."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels.updates import cpu as cpu_updates


def test_a_refused_step_changes_no_table() -> None:
    """Also where the index is looked at by PyTorch's addition, which plain SGD is."""
    for kind in ("SGD", "Adagrad"):
        for index in (4, -1):
            params = [nn.Parameter(torch.ones(4, 2)) for _ in range(3)]
            optimizer = getattr(mg.optim, kind)([{"params": params[:2]}, {"params": params[2:]}], lr=0.1)
            for p, row in zip(params, (0, 1, index), strict=True):
                p.grad = torch.sparse_coo_tensor([[row]], torch.ones(1, 2), (4, 2), check_invariants=False)
            with pytest.raises(IndexError, match=rf"gradient of parameter 0 of group 1.* index {index} of"):
                optimizer.step()
            assert all(bool((p == 1).all()) for p in params)
            assert not any(state["step"] for state in optimizer.state.values())


def test_groups_and_gradients_are_as_before_when_pytorchs_step_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 1))
    optimizer = mg.optim.RMSprop([p, q])
    p.grad, q.grad = torch.ones(3), torch.ones(2, 1).to_sparse(1)
    groups, grads = optimizer.param_groups, (p.grad, q.grad)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["torch.optim.rmsprop"], "rmsprop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert optimizer.param_groups is groups
    assert (p.grad, q.grad) == grads
    assert q.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("options", [{}, {"state": "row"}], ids=str)
def test_a_step_that_fails_half_way_is_counted_for_those_that_had_it(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Not for tables whose kernel never ran: of the usual kind, and of one that the engine updates."""
    dense, *tables = params = [nn.Parameter(torch.ones(4, 2)) for _ in range(4)]
    optimizer = mg.optim.Adagrad(params, lr=0.1, **options)
    dense.grad = torch.ones(4, 2)
    for table in tables:
        table.grad = torch.sparse_coo_tensor([[1]], torch.ones(1, 2), (4, 2))

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "update_rows_", fails)
        patch.setattr(cpu_updates, "run", fails)
        with pytest.raises(MemoryError):
            optimizer.step()
    assert not (dense == 1).any()
    assert all(bool((table == 1).all()) for table in tables)
    optimizer.step()
    assert [float(optimizer.state[p]["step"]) for p in params] == [2, 1, 1, 1]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("shape", [(100, 4), (25, 4), (4, 50)])
def test_a_parameter_that_changes_its_shape_in_the_same_memory_is_refused(
    kind: str, shape: tuple[int, int]
) -> None:
    """Neither its states nor its gradient fit then: nobody may run past their ends."""
    for late in (False, True):
        memory = torch.zeros(100, 4)
        p = nn.Parameter(memory[:50])
        optimizer = getattr(mg.optim, kind)([p], lr=0.1)
        p.grad = torch.ones(50, 4)
        optimizer.step()
        p.data = torch.as_strided(memory, shape, (shape[1], 1))
        if late:
            p.grad = None
            p.grad = torch.ones(shape)
        before = memory.clone()
        if late and kind == "SGD":  # it has no state
            optimizer.step()
        else:
            with pytest.raises(ValueError, match=r"shape \(50, 4\)"):
                optimizer.step()
            assert torch.equal(memory, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["SGD", "RMSprop", "Adagrad"])
def test_states_of_another_dtype_are_not_read_as_if_they_had_the_old_one(
    kind: str, dtype: torch.dtype
) -> None:
    """``.data`` of a state was assigned: its memory is shorter or longer than that of the loop over rows."""
    options = {"lr": 0.1, **({"momentum": 0.9} if kind == "SGD" else {})}
    p = nn.Parameter(torch.randn(16, 4))
    q = nn.Parameter(p.detach().clone())
    mine, reference = (getattr(lib, kind)([t], **options) for lib, t in ((mg.optim, p), (torch.optim, q)))
    for step in range(4):
        q.grad = torch.randn(16, 4)
        p.grad = q.grad.to_sparse(1)
        for optimizer, t in ((mine, p), (reference, q)) if step == 2 else ():
            for value in optimizer.state[t].values():
                value.data = value.data.to(dtype) if value.dim() else value.data
        mine.step()
        reference.step()
    torch.testing.assert_close(p, q, **({"rtol": 0, "atol": 0.02} if dtype is torch.bfloat16 else {}))


def test_gradients_go_through_a_differentiable_step_if_they_are_dense() -> None:
    scale = torch.tensor(2.0, requires_grad=True)
    param = (scale * torch.tensor([1.0, -3.0])).clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # .grad of a tensor that is no leaf
        param.grad = torch.tensor([0.5, 2.0])
        mg.optim.SGD([param], lr=0.1, differentiable=True).step()
    param.square().sum().backward()
    torch.testing.assert_close(scale.grad, torch.tensor(2 * (1.95 * 1 + 6.2 * 3)))
    p = nn.Parameter(torch.ones(3, 1))
    p.grad = torch.ones(3, 1).to_sparse(1)
    with pytest.raises(ValueError, match="differentiable=True is available for dense gradients only"):
        mg.optim.SGD([p], differentiable=True).step()
    assert p.tolist() == [[1.0]] * 3
