"""Leaves, gradients, hooks and backward: what a tensor has, with the pattern attached."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, leaf, nan, on, poisoned


def known_and_not() -> mg.MaskedTensor:
    return poisoned([1.0, None, 3.0], requires_grad=True)


def test_a_gradient_is_set_or_seeded_and_reaches_chosen_inputs() -> None:
    for gradient, first in (
        (torch.tensor([1.0, nan, 10.0]).double(), 1.0),
        (poisoned([None, None, 10.0]), 0.0),
    ):
        x, w = known_and_not(), leaf(2.0, 2.0, 2.0)
        x.grad = gradient
        assert x._values.grad.tolist() == [first, 0.0, 10.0]
        y = x * w
        y.retain_grad()
        assert y.retains_grad
        y.backward(gradient=gradient, inputs=[x, y])
        assert_entries(x.grad, [3 * first, None, 30.0])
        assert_entries(y.grad, [first, None, 10.0])
        assert w.grad is None
        (x * w).sum().backward(inputs=[w])
        assert_entries(w.grad, [1.0, 0.0, 3.0])
        with pytest.raises(RuntimeError, match="shape"):
            x.grad = poisoned([1.0, None])


def test_backward_is_refused_where_torch_refuses_it() -> None:
    x = known_and_not()
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        x.backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        poisoned([1.0, None]).sum().backward()
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    nothing = leaf(nan, nan)
    mg.masked(nothing, on(0, 0)).amax().backward()  # of an unspecified number
    assert nothing.grad.tolist() == [0.0, 0.0]


class TestHooks:
    @pytest.mark.parametrize(
        ("hook", "expected"),
        [
            (lambda g: None, [1.0, 0.0, 1.0]),
            (lambda g: (g * 10).filled(nan), [10.0, 0.0, 10.0]),
            (lambda g: mg.masked(g, on(0, 1, 1)), [0.0, 0.0, 1.0]),
        ],
        ids=["nothing", "plain", "fewer entries"],
    )
    def test_see_a_masked_gradient_and_may_replace_it(self, hook: Any, expected: list[float]) -> None:
        seen, x = [], known_and_not()
        x.register_hook(lambda g: seen.append(g.tolist()))
        x.register_hook(hook)
        (x * 1).sum().backward()
        assert seen == [[1.0, None, 1.0]]
        assert x._values.grad.tolist() == expected

    @pytest.mark.parametrize(
        ("wrong", "kind", "words"),
        [
            (poisoned([1.0, None]), RuntimeError, r"shape \(3,\), found \(2,\)"),
            (torch.ones(1, 3), RuntimeError, r"shape \(3,\), found \(1, 3\)"),
            (1.0, TypeError, "must return a tensor or None, found float"),
        ],
    )
    def test_must_return_a_gradient(self, wrong: Any, kind: type[Exception], words: str) -> None:
        x = known_and_not()
        x.register_hook(lambda g: wrong)
        with pytest.raises(kind, match=words):
            x.sum().backward()

    def test_after_accumulation_get_the_tensor_which_must_be_a_leaf(self) -> None:
        seen: list[Any] = []
        for x in (known_and_not(), torch.eye(2).to_sparse().requires_grad_()):
            total = (x if isinstance(x, mg.MaskedTensor) else mg.from_sparse(x)).sum()
            x.register_hook(lambda g: seen.append(type(g)))
            x.register_post_accumulate_grad_hook(lambda t, x=x: seen.append((t is x, t.grad.layout)))
            total.backward()
        assert seen == [mg.MaskedTensor, (True, torch.strided), torch.Tensor, (True, torch.sparse_coo)]
        with pytest.raises(RuntimeError, match="non-leaf"):
            (known_and_not() * 2).register_post_accumulate_grad_hook(lambda t: None)

    def test_leave_other_uses_of_the_plain_tensor_alone(self) -> None:
        w = leaf(1.0, 2.0)
        x = mg.masked(w, on(1, 0))
        x.register_hook(lambda g: g * 10)
        (x.sum() + (w * torch.tensor([0.0, 7.0])).sum()).backward()
        assert w.grad.tolist() == [10.0, 7.0]


def test_changes_of_requires_grad_in_place() -> None:
    hidden = leaf(1.0, nan) * 2
    x = mg.masked(hidden, on(1, 0))
    assert x.detach_() is x
    assert hidden.requires_grad
    assert x.requires_grad_() is x
    assert x.requires_grad
    assert not x.requires_grad_(False).requires_grad
    with pytest.raises(RuntimeError, match="floating point"):
        poisoned([1, None], torch.int64).requires_grad_()
