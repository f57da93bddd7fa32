"""The mask goes where its parameter goes, and the guard around steps puts everything back."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as hooks

import maskgrad as mg
from tests.ranks import exit_code_of
from tests.unit.optim.kinds import coo


def through_pickle(module: Any) -> Any:
    return pickle.loads(pickle.dumps(module))


def through_torch_save(module: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=isinstance(module, nn.Parameter))


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("whole", [True, False], ids=["module", "parameter"])
def test_copies_have_the_mask(copied: Any, whole: bool) -> None:
    module = nn.Linear(2, 3, bias=False)
    mg.train_only(module.weight, torch.tensor([[True], [False], [True]]))
    other = copied(module).weight if whole else copied(module.weight)
    assert type(other) is nn.Parameter
    assert other.requires_grad
    assert other.is_leaf
    assert torch.equal(other, module.weight)
    assert other.data_ptr() != module.weight.data_ptr()
    mg.train_only(module.weight, None)
    again = copy.deepcopy(other)
    for param in (other, again):
        before = param.detach().clone()
        param.grad = torch.ones(3, 2)
        torch.optim.SGD([param], lr=0.1, weight_decay=0.1).step()
        assert (param.detach() != before).any(1).tolist() == [True, False, True]


def test_modules_keep_the_mask_when_they_are_loaded_and_converted() -> None:
    module, donor = nn.Linear(2, 1), nn.Linear(2, 1)
    mg.train_only(module.weight, torch.tensor([[True, False]]))
    assert module.state_dict().keys() == donor.state_dict().keys()
    module.load_state_dict(donor.state_dict())
    assert torch.equal(module.weight, donor.weight)
    module.double()
    module.weight.grad = torch.ones(1, 2).double()
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert (module.weight != donor.weight).tolist() == [[True, False]]


def test_a_step_that_raises_leaves_gradient_and_parameter() -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    mg.train_only(p, torch.tensor([True, False]))
    optimizer = torch.optim.SparseAdam([p, q], lr=0.1)
    p.grad, q.grad = coo([[1]], [1.0], (2,)), torch.ones(2)  # SparseAdam refuses the second
    kept = p.grad
    with pytest.raises(RuntimeError):
        optimizer.step()
    q.grad = None
    optimizer.step()
    assert p.grad is kept
    assert p.tolist() == [1.0, 1.0]


def steps_in_a_fresh_process(path: Path) -> None:
    assert not hooks._global_optimizer_pre_hooks
    assert not hooks._global_optimizer_post_hooks
    module = torch.load(path, weights_only=False)
    module.weight.grad = torch.ones(1, 2)
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert module.weight.tolist() == [[0.5, 1.0]], module.weight


def test_a_fresh_process_obeys_a_mask_from_a_file_and_nothing_is_hooked_before(tmp_path: Path) -> None:
    module = nn.Linear(2, 1, bias=False)
    module.weight.data.fill_(1.0)
    mg.train_only(module.weight, torch.tensor([[True, False]]))
    torch.save(module, tmp_path / "module.pt")
    assert exit_code_of(steps_in_a_fresh_process, tmp_path / "module.pt") == 0


def test_an_optimizer_whose_step_raised_is_freed() -> None:
    weight = nn.Parameter(torch.ones(3))
    mg.train_only(weight, torch.tensor([True, False, True]))

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise MemoryError

    def fail() -> weakref.ref[Any]:
        optimizer = Failing([weight], lr=0.1)
        weight.grad = torch.ones(3)
        with pytest.raises(MemoryError):
            optimizer.step()
        return weakref.ref(optimizer)

    optimizer = fail()
    gc.collect()
    assert optimizer() is None
