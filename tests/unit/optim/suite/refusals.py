"""What every optimizer refuses, and that a refused step, state or group has changed nothing."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import optim
from maskgrad.masked_tensor import masked
from tests.unit.optim.kinds import coo
from tests.unit.optim.optimizers import NAMES, NAN, Case


def contents(optimizer: torch.optim.Optimizer) -> list[Any]:
    params = [p.detach() for group in optimizer.param_groups for p in group["params"]]
    return [params, optimizer.state_dict()["state"], len(optimizer.param_groups)]


def refuses(optimizer: Any, call: Callable[[], Any], error: type[Exception], words: str) -> str:
    """The message, after a look at parameters and states."""
    before = copy.deepcopy(contents(optimizer))
    with pytest.raises(error, match=words) as refusal:
        call()
    torch.testing.assert_close(contents(optimizer), before, rtol=0, atol=0)
    return str(refusal.value)


def stepped(make: Callable[..., Any], shape: tuple[int, ...] = (2,), **options: Any) -> Any:
    """An optimizer that ``make`` makes, after a step."""
    p = nn.Parameter(torch.ones(shape))
    optimizer = make([p], **options)
    p.grad = torch.ones(shape)
    optimizer.step()
    return optimizer


BAD: tuple[tuple[Any, type[Exception], str], ...] = (
    (coo([[0, 3]], torch.ones(2, 1), (3, 1)), IndexError, "index 3 of entry 1 is outside the size 3"),
    (coo([[-2, 0]], torch.ones(2, 1), (3, 1)), IndexError, "index -2 of entry 0"),
    (torch.ones(2, 1), ValueError, r"shape \(2, 1\), but the parameter has shape \(3, 1\)"),
    (torch.ones(3, 1, device="meta"), ValueError, "is on meta"),
    (torch.ones(3, 1, dtype=torch.int32), TypeError, "dtype torch.int32"),
    (torch.ones(3, 1, dtype=torch.complex64), TypeError, "dtype torch.complex64"),
)


#: Of numbers, negative ones first, and of pairs.
OUT_OF_RANGE: dict[type, list[tuple[Any, type[Exception], str]]] = {
    float: [
        (-0.1, ValueError, " must be at least 0.*, got -0.1"),
        (NAN, ValueError, " must be finite, got nan"),
        ("fast", TypeError, " must be a number or a tensor with one element, got"),
    ],
    tuple: [
        ((-0.1, 1.2), ValueError, " must be (two numbers of|a number between)"),
        ((0.5, NAN), ValueError, r"\[1\] must be finite, got nan"),
        ((0.9,), ValueError, " must be two numbers, got"),
        (0.5, TypeError, " must be two numbers, got 0.5"),
    ],
}


class Refusals:
    def test_a_step_is_all_or_nothing(self, case: Case) -> None:
        good, spoiled = nn.Parameter(torch.ones(3, 1)), nn.Parameter(torch.ones(3, 1))
        optimizer = case.mine([{"params": [good]}, {"params": [spoiled], "lr": 0.2}])
        for p in (good, spoiled):
            p.grad = torch.ones(3, 1)
        optimizer.step()
        spoiled.grad = None
        for bad, error, words in BAD:
            # Past the check of attach_gradient, as a gradient that was changed afterwards would be.
            spoiled._maskgrad_gradient = bad
            assert "parameter 0 of group 1" in refuses(optimizer, optimizer.step, error, words)
        # as on PyTorch/XLA
        spoiled._maskgrad_gradient = masked(torch.ones(3, 1), torch.ones(3, 1).bool())
        spoiled.grad = torch.ones(3, 1)
        words = r"parameter 0 of group 1 has an attached gradient and a \.grad"
        refuses(optimizer, optimizer.step, ValueError, words)
        spoiled._maskgrad_gradient = None
        kept, optimizer.param_groups[1]["lr"] = optimizer.param_groups[1]["lr"], NAN
        refuses(optimizer, optimizer.step, ValueError, "lr")
        optimizer.param_groups[1]["lr"] = kept
        for key in [key for key, value in optimizer.state[spoiled].items() if value.shape == spoiled.shape]:
            kept, optimizer.state[spoiled][key] = optimizer.state[spoiled][key], torch.ones(2)
            words = f"state '{key}' of parameter 0 of group 1 has shape .2,. on cpu"
            refuses(optimizer, optimizer.step, ValueError, words)
            optimizer.state[spoiled][key] = kept
        optimizer.step()

    def test_invalid_options_are_refused_at_construction(self, case: Case) -> None:
        p, q = [nn.Parameter(torch.ones(2))], nn.Parameter(torch.ones(2))
        optimizer = stepped(case.mine)
        refused: list[tuple[str, Any, type[Exception], str]] = [
            ("unspecified", "all", ValueError, "unspecified='all' is not available; use .*'skip'.*'zero'"),
            ("state", "half", ValueError, "state='half' is not available; use"),
            ("lr", torch.tensor([0.1, 0.2]), ValueError, "lr must be a scalar"),
        ]
        if not case.is_torchs:
            refused.append(("differentiable", True, ValueError, "differentiable=True is not available"))
        for name, parameter in inspect.signature(case.ours).parameters.items():
            kind = tuple if isinstance(parameter.default, tuple) else float
            any_sign = name in ("dampening", "t0") or (name, case.ours) == ("alpha", optim.ASGD)
            if type(parameter.default) in (int, float, tuple):
                refused += [
                    (name, bad, error, f"{name}{words}")
                    for bad, error, words in OUT_OF_RANGE[kind][any_sign:]
                ]
        for name, bad, error, words in refused:
            with pytest.raises(error, match=words):
                case.mine(p, **{name: bad})
            refuses(optimizer, partial(optimizer.add_param_group, {"params": [q], name: bad}), error, words)
        with pytest.raises(TypeError, match="parameter 0 of group 0 is a sparse tensor"):
            case.mine([torch.eye(2).to_sparse().requires_grad_()])
        with pytest.raises(TypeError, match=r"parameter 0 of group 0 has dtype torch\.int64"):
            case.mine([torch.ones(2, dtype=torch.int64)])
        if len(case.row_states) == 1:
            why = f"( with centered=True|: {case.ours.__name__} has no second)"
            with pytest.raises(ValueError, match=f"state='row' is not available{why}"):
                case.mine(p, state="row")

    def test_a_state_of_another_optimizer_is_refused(self, plain: Case) -> None:
        """A state has no name on it: those of one kind cannot be told apart."""
        name = plain.ours.__name__
        optimizer = stepped(plain.mine)
        words = rf"the loaded state (is not from {name}: its|of .* but {name} needs)"
        for other, donors in self.donors().items():
            if {other, name} not in ({name}, {"Adam", "AdamW"}) and (other, name) not in _ALIKE:
                for donor in donors:
                    load = partial(optimizer.load_state_dict, donor.state_dict())
                    refuses(optimizer, load, ValueError, words)
        optimizer.step()

    @staticmethod
    def donors() -> dict[str, list[Any]]:
        """An optimizer of each class that keeps states, ours and PyTorch's, after a step."""
        found: dict[str, list[Any]] = {}
        for name in NAMES:
            libraries = [library for library in (optim, torch.optim) if hasattr(library, name)]
            momentum = {"momentum": 0.9} if name == "SGD" else {}
            found[name] = [stepped(getattr(library, name), **momentum) for library in libraries]
        p = nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2).to_sparse()
        found["SparseAdam"] = [torch.optim.SparseAdam([p])]
        found["SparseAdam"][0].step()
        return found

    def test_a_state_that_does_not_fit_is_not_loaded(self, case: Case) -> None:
        optimizer = stepped(case.mine)
        saved = copy.deepcopy(optimizer.state_dict())

        def refused(words: str, state: Any) -> None:
            refuses(optimizer, lambda: optimizer.load_state_dict(state), ValueError, words)

        for name in saved["state"].get(0, {}):
            spoiled = copy.deepcopy(saved)
            del spoiled["state"][0][name]
            if spoiled["state"][0] and not case.variant:
                refused(f"state of parameter 0 of group 0 has .* but {case.ours.__name__}", spoiled)
            spoiled["state"][0] |= saved["state"][0] | {"unheard_of": torch.ones(2)}
            refused(r"has .*unheard_of", spoiled)
        spoiled = copy.deepcopy(saved)
        spoiled["param_groups"][0]["lr"] = -1.0
        refused("lr must be at least 0", spoiled)
        del spoiled["param_groups"][0]["lr"]
        refused("its parameter group has no lr; load a state of", spoiled)
        larger = stepped(case.mine, (3,))
        if any(value.dim() for entry in larger.state.values() for value in entry.values()):
            refused(r"of parameter 0 of group 0 has shape \(3,\)", larger.state_dict())
        optimizer.step()


#: What RAdam keeps is what Adam's was before AMSGrad; Adam's, SparseAdam's.
_ALIKE = {("RAdam", "Adam"), ("RAdam", "AdamW"), ("SparseAdam", "Adam")}
