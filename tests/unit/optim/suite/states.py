"""States: those of PyTorch, there and back; files, copies and pickles go on; functions take them one by one."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad import attach_gradient, optim
from maskgrad.masked_tensor import masked
from maskgrad.optim import attached_gradient
from tests.unit.optim.kinds import KINDS
from tests.unit.optim.optimizers import Case, accepts, bits, give, twins


def filed(state: Any) -> Any:
    """As it comes out of a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class States:
    def test_states_go_both_ways_in_mid_run(self, case: Case) -> None:
        """Names, dtypes and shapes are PyTorch's, and the run goes on bit for bit; our options stay."""
        mine, reference = twins([(4, 3), (5,)])
        a, b = case.mine(mine, **case.same_way), case.reference(reference, **case.same_way)
        for step in range(9):
            give(mine, reference)
            a.step()
            b.step()
            if step in (2, 5):
                found, expected = filed(a.state_dict()), filed(b.state_dict())
                assert found["state"].keys() == expected["state"].keys()
                for key, state in expected["state"].items():
                    names = [*state] if case.is_torchs else [*found["state"][key]]
                    assert names == [*found["state"][key]]
                    assert {*state} == {*names}
                    for name, t in state.items():
                        got = found["state"][key][name]
                        assert (got.dtype, got.shape, got.device) == (t.dtype, t.shape, t.device)
                a, b = (
                    make(p, **{**case.same_way, "lr": 0.7})
                    for make, p in ((case.mine, mine), (case.reference, reference))
                )
                a.load_state_dict(expected)
                b.load_state_dict(found)
                if case.is_torchs:
                    assert a.param_groups[0].keys() - {"params"} == a.defaults.keys()
                assert (a.param_groups[0]["unspecified"], a.param_groups[0]["state"]) == ("skip", "full")
        for p, q in zip(mine, reference, strict=True):
            case.assert_same(p, q)

    def test_a_copy_goes_on_as_the_original(self, case: Case) -> None:
        for state in case.row_states:
            for copied in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair)), None):
                p = nn.Parameter(torch.randn(3, 2))
                optimizer = case.mine([p], state=state)
                gradients = torch.randn(4, 3, 2)
                for gradient in gradients[:2]:
                    p.grad = gradient.clone()
                    optimizer.step()
                p.grad = None
                if copied is None:
                    q = nn.Parameter(p.detach().clone())
                    again = case.mine([q], state=state, lr=0.7)
                    again.load_state_dict(filed(optimizer.state_dict()))
                else:
                    again, q = copied((optimizer, p))
                assert again.param_groups[0]["params"][0] is q
                for gradient in gradients[2:]:
                    p.grad, q.grad = gradient.clone(), gradient.clone()
                    optimizer.step()
                    again.step()
                assert torch.equal(bits(p), bits(q))

    def test_step_counts_that_are_numbers_are_taken_over(self, case: Case) -> None:
        """As in the files of an old PyTorch."""
        ((p,), (q,)) = twins([(2,)])
        first, second = case.mine([p]), case.mine([q])
        give([p], [q])
        for optimizer in (first, second):
            optimizer.step()
        saved = copy.deepcopy(first.state_dict())
        for entry in saved["state"].values():
            for name in entry.keys() & {"step", "mu_product", "eta", "mu"}:
                entry[name] = entry[name].item()
        second.load_state_dict(saved)
        for optimizer in (first, second):
            optimizer.step()
        assert torch.equal(bits(p), bits(q))

    def test_functions_are_steps_of_the_optimizer(self, case: Case) -> None:
        if case.options.get("dampening"):
            return  # has a marker of started buffers: test_functional.py
        for name, kind in KINDS.items():
            dtype = torch.complex64 if name == "coo with duplicates" else torch.float32
            for state in case.row_states:
                some = torch.rand(4, 2, 2, 1) < 0.6
                dense = torch.where(some, torch.randn(4, 2, 2, 2, dtype=dtype), 0).view(4, 2, 4)
                self._follow(case, [*map(kind, dense)], state, torch.randn(2, 4, dtype=dtype))

    def _follow(self, case: Case, gradients: list[Any], state: str, start: Tensor) -> None:
        """Both ways in lockstep; the function starts with copies of the states that the optimizer starts with."""
        name = case.ours.__name__.lower()
        function = getattr(optim.functional, "adam_" if name == "adamw" else f"{name}_")
        p, param = nn.Parameter(start.clone()), start.clone()
        optimizer = case.mine([p], state=state)
        numbers = {key: value for key, value in case.options.items() if accepts(function, key)}
        if name == "adamw":
            numbers = {"weight_decay": 0.01, **numbers, "decoupled_weight_decay": True}
        attach_gradient(
            p, torch.zeros_like(start).to_sparse()
        )  # no entry: makes the state, and counts a step
        optimizer.step()
        states = [optimizer.state.get(p, {}).get(name) for name in case.declared.states]
        states = [None if s is None else s.clone() for s in states]
        for step, gradient in enumerate(gradients, 2):
            attach_gradient(p, gradient)
            optimizer.step()
            extra = {"step": step} if accepts(function, "step") else {}
            assert function(param, gradient, *states, **numbers, **extra) is param
            torch.testing.assert_close(param, p.detach(), rtol=0, atol=0)
            for name, value in zip(case.declared.states, states, strict=True):
                if value is not None:
                    torch.testing.assert_close(value, optimizer.state[p][name], rtol=0, atol=0)

    def test_the_machinery_of_torch_optim_works(self, case: Case) -> None:
        """Hooks and closures are called once, schedules write to a tensor, attached gradients are removed."""
        p = nn.Parameter(torch.ones(2))
        accepted = {"foreach": True, "fused": False, "capturable": False, "differentiable": False}
        accepted = {name: value for name, value in accepted.items() if accepts(case.ours, name)}
        optimizer = case.mine([p], lr=torch.tensor(0.5), **accepted)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        seen: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))

        def closure() -> Tensor:
            seen.append("closure")
            optimizer.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss

        assert optimizer.step(closure).item() == 2.0
        scheduler.step()
        assert seen == ["before", "closure", "after"]
        assert optimizer.param_groups[0]["lr"].item() == 0.25
        assert repr(optimizer).startswith(case.ours.__name__)
        before = p.detach().clone()
        for set_to_none in (True, False):
            attach_gradient(p, masked(torch.ones(2), torch.tensor([True, False])))
            optimizer.zero_grad(set_to_none=set_to_none)
            assert attached_gradient(p) is None
        optimizer.step()
        assert torch.equal(p, before)
