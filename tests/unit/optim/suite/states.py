"""States: those of PyTorch, there and back; files, copies and pickles go on; functions take them one by one."""

from __future__ import annotations

import io
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad import attach_gradient, optim
from maskgrad.masked_tensor import masked
from maskgrad.optim import attached_gradient
from tests.unit.optim.kinds import KINDS
from tests.unit.optim.optimizers import Case, accepts, give, twins


def filed(state: Any) -> Any:
    """As it comes out of a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class States:
    def test_states_go_both_ways_in_mid_run(self, case: Case) -> None:
        """Names, dtypes and shapes are PyTorch's, and the run goes on bit for bit; our options stay."""
        mine, reference = twins((4, 3), (5,))
        a, b = case.mine(mine, **case.same_way), case.reference(reference, **case.same_way)
        for step in range(9):
            give(mine, reference)
            a.step()
            b.step()
            if step in (2, 5):
                found, expected = filed(a.state_dict()), filed(b.state_dict())
                assert found["state"].keys() == expected["state"].keys()
                for key, state in expected["state"].items():
                    own = found["state"][key]
                    assert [*own] == ([*state] if case.is_torchs else [*own])
                    assert {name: (t.dtype, t.shape, t.device) for name, t in own.items()} == {
                        name: (t.dtype, t.shape, t.device) for name, t in state.items()
                    }
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
        saved = filed(a.state_dict())
        for state in saved["state"].values():  # as in the files of an old PyTorch
            state |= {name: state[name].item() for name in state.keys() & {"step", "mu_product", "eta", "mu"}}
        a.load_state_dict(saved)
        give(mine, reference)
        a.step()
        b.step()
        torch.testing.assert_close(mine, reference)

    def test_functions_are_steps_of_the_optimizer(self, case: Case) -> None:
        """Both in lockstep; the function starts with copies of the states that the optimizer starts with."""
        if case.options.get("dampening"):
            return  # has a marker of started buffers: test_functional.py
        name = case.ours.__name__.lower()
        function = getattr(optim.functional, "adam_" if name == "adamw" else f"{name}_")
        numbers = {key: value for key, value in case.options.items() if accepts(function, key)}
        if name == "adamw":
            numbers = {"weight_decay": 0.01, **numbers, "decoupled_weight_decay": True}
        for (label, kind), state in itertools.product(KINDS.items(), case.row_states):
            dtype = torch.complex64 if label == "coo with duplicates" else torch.float32
            p = nn.Parameter(torch.randn(2, 4, dtype=dtype))
            optimizer, param = case.mine([p], state=state), p.detach().clone()
            attach_gradient(
                p, torch.zeros_like(param).to_sparse()
            )  # no entry: makes states, and counts a step
            optimizer.step()
            held = {key: optimizer.state.get(p, {}).get(key) for key in case.declared.states}
            states = {key: None if value is None else value.clone() for key, value in held.items()}
            for step in range(2, 6):
                some = (torch.rand(2, 2, 1) < 0.6).expand(2, 2, 2).reshape(2, 4)
                gradient = kind(torch.where(some, torch.randn(2, 4, dtype=dtype), 0))
                attach_gradient(p, gradient)
                optimizer.step()
                extra = {"step": step} if accepts(function, "step") else {}
                assert function(param, gradient, *states.values(), **numbers, **extra) is param
                kept = {key: value for key, value in states.items() if value is not None}
                wanted = {key: optimizer.state[p][key] for key in kept}
                torch.testing.assert_close([param, kept], [p.detach(), wanted], rtol=0, atol=0)

    def test_the_machinery_of_torch_optim_works(self, case: Case) -> None:
        """Hooks and closures are called once, schedules write to a tensor, attached gradients are removed."""
        case.reference([nn.Parameter(torch.ones(1))])  # wraps the step of its class
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
