"""What an accumulator refuses, and what it notices: nothing is half divided, and nobody is disturbed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.gradients import step_hooks

NAN = float("nan")


BAD: dict[str, tuple[Callable[[Tensor], dict[str, Any]], str]] = {
    "reduced without count": (lambda w: {"losses": w.sum()}, "reduced loss"),
    "plain without count": (lambda w: {"losses": w}, "count= or mask="),
    "negative": (lambda w: {"losses": w, "count": -1}, "at least 0, found -1"),
    "NaN": (lambda w: {"losses": w, "count": torch.tensor(NAN)}, "found nan"),
    "two counts": (lambda w: {"losses": w, "count": torch.ones(2)}, "count must be a scalar"),
    "a Boolean": (lambda w: {"losses": w, "count": True}, "bool"),
    "mask twice": (lambda w: {"losses": mg.masked(w), "mask": torch.ones(2).bool()}, "masked already"),
    "mask and mean": (lambda w: {"losses": w.sum(), "mask": w > 0, "count": 2}, "count= alone"),
    "no tensor": (lambda w: {"losses": 3.0, "count": 1}, "of type float"),
    "integers": (lambda w: {"losses": torch.ones(2).long(), "count": 2}, "int64"),
    "no history": (lambda w: {"losses": w.detach(), "count": 2}, "not part of a graph"),
    "weights of one loss": (lambda w: {"losses": w, "count": 2, "weights": {"a": 1.0}}, "in a dict"),
    "no names": (lambda w: {"losses": {}}, "without names"),
    "unknown name": (lambda w: {"losses": {"a": w}, "count": {"a": 2, "b": 1}}, "'b'"),
    "one count for several": (lambda w: {"losses": {"a": w}, "count": 2}, "a dict like losses"),
    "weight NaN": (lambda w: {"losses": {"a": w}, "count": {"a": 2}, "weights": {"a": NAN}}, "finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_change_nothing(name: str) -> None:
    w = nn.Parameter(torch.ones(2))
    accumulator = mg.GradientAccumulator([w])
    arguments, words = BAD[name]
    with pytest.raises((TypeError, ValueError), match=words):
        accumulator.backward(**arguments(w))
    accumulator.backward(w * 2, count=2)
    assert accumulator.finish().item() == 2.0
    assert w.grad.tolist() == [1.0, 1.0]


def test_bad_construction() -> None:
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"'token-mean', .* found 'token'"):
        mg.GradientAccumulator([w], mean="token")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a set"):
        mg.GradientAccumulator({w})
    with pytest.raises(TypeError, match="found int"):
        mg.GradientAccumulator([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no parameters"):
        mg.GradientAccumulator(iter([]))
    with pytest.raises(RuntimeError, match="init_process_group"):
        mg.GradientAccumulator([w], group="none")
    with pytest.raises(ValueError, match="mean='seq-mean-token-mean'"):
        mg.GradientAccumulator([w], mean="seq-mean-token-mean").backward(w * torch.ones(3, 2), count=3)


def test_names_and_weights_are_those_of_the_first_micro_batch() -> None:
    w = nn.Parameter(torch.ones(()))
    accumulator = mg.GradientAccumulator([w])
    weights = {"lm": 1.0, "aux": 0.5}
    accumulator.backward({"lm": w * 3}, {"lm": 1}, weights=weights)  # lacks a loss, and gives its weight
    accumulator.backward({"lm": w * 5, "aux": w * 8}, {"lm": 1, "aux": 1}, weights=weights)
    for losses, count, given, words in (
        ({"aux": w}, {"aux": 2}, None, r"'aux' with weight 1.0.*'aux' with weight 0.5"),
        ({"lm": w}, {"lm": 2}, {"axu": 0.5}, r"weights has 'axu', which losses.*every loss a weight"),
        (w, 2, None, "a loss without a name, earlier ones had losses with names"),
    ):
        with pytest.raises(ValueError, match=words):
            accumulator.backward(losses, count, weights=given)
    assert accumulator.finish() == {"lm": torch.tensor(4.0), "aux": torch.tensor(8.0)}
    assert w.grad == 8.0  # (3 + 5) / 2 + 0.5 * 8


def accumulating() -> tuple[nn.Parameter, mg.GradientAccumulator]:
    accumulator = mg.GradientAccumulator([w := nn.Parameter(torch.ones(2))])
    accumulator.backward(w * 2, count=2)
    return w, accumulator


def test_finish_needs_a_backward_and_gradients_from_before_are_refused() -> None:
    w, accumulator = accumulating()
    accumulator.finish()
    with pytest.raises(RuntimeError, match="without a backward"):
        accumulator.finish()
    with pytest.raises(RuntimeError, match=r"parameter '0', of shape \(2,\), has a \.grad from before"):
        accumulator.backward(w, count=2)
    torch.optim.SGD([w], lr=0.1).zero_grad(set_to_none=False)
    accumulator.backward(w * 3, count=2)
    assert accumulator.finish().item() == 3.0
    assert w.grad.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("change", [lambda v: v.sum().backward(), lambda v: setattr(v, "grad", None)])
def test_a_changed_sum_is_refused(change: Callable[[Tensor], None]) -> None:
    w, accumulator = accumulating()
    change(w)
    for call in (lambda: accumulator.backward(w, count=2), accumulator.finish, accumulator.state_dict):
        with pytest.raises(
            RuntimeError, match=r"were changed .* a plain backward\(\).*accumulator\.reset\(\)"
        ):
            call()
    accumulator.reset()
    assert w.grad is None
    w.sum().backward()  # between steps, it is anybody's
    w.grad = None
    accumulator.backward(w * 3, count=2)
    assert accumulator.finish().item() == 3.0


def test_a_pass_that_fails_must_be_begun_again() -> None:
    w, accumulator = accumulating()
    loss = w.sum()
    loss.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        accumulator.backward(loss, count=2)
    with pytest.raises(RuntimeError, match=r"midway \(ZeroDivisionError.*call accumulator\.reset"):
        accumulator.finish()


def test_a_step_before_finish_is_refused() -> None:
    w, accumulator = accumulating()
    optimizer = torch.optim.SGD([w], lr=0.1)
    with pytest.raises(RuntimeError, match=r"before accumulator\.finish"):
        optimizer.step()
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1).step()  # of others
    assert w.tolist() == [1.0, 1.0]
    accumulator.finish()
    optimizer.step()


def test_a_deleted_accumulator_leaves_no_hooks() -> None:
    before = set(step_hooks._observers)
    w, accumulator = accumulating()
    half = nn.Parameter(torch.ones(2, dtype=torch.float16))
    second = mg.GradientAccumulator([half])
    second.backward(half, count=2)
    assert half.grad is None  # its sum is one of float32
    gc.disable()
    try:
        del accumulator, second  # nobody has to look for cycles
        w.sum().backward()
        torch.optim.SGD([w], lr=0.1).step()
        half.sum().backward()
        assert half.grad.dtype is torch.float16
    finally:
        gc.enable()
    assert not w._post_accumulate_grad_hooks
    assert set(step_hooks._observers) <= before
