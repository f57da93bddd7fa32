"""Leaves, gradients, hooks and backward: what a tensor has, with the pattern attached."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, leaf, nan, on, poisoned


def known_and_not() -> mg.MaskedTensor:
    return poisoned([1.0, None, 3.0], requires_grad=True)


class TestGrad:
    @pytest.mark.parametrize("grad", [poisoned([5.0, None, 6.0]), torch.tensor([5.0, nan, 6.0]).double()])
    def test_can_be_set(self, grad: Any) -> None:
        x = known_and_not()
        x.grad = grad
        assert_entries(x.grad, [5.0, None, 6.0])
        assert x._values.grad.tolist() == [5.0, 0.0, 6.0]
        with pytest.raises(RuntimeError, match="shape"):
            x.grad = poisoned([1.0, None])

    def test_of_an_inner_node_is_retained_on_request(self) -> None:
        x = known_and_not()
        y = x * 2
        y.retain_grad()
        assert y.retains_grad
        y.square().sum().backward()
        assert_entries(y.grad, [4.0, None, 12.0])


class TestBackward:
    @pytest.mark.parametrize(
        ("seed", "expected"),
        [
            (torch.tensor([1.0, nan, 10.0]).double(), [2.0, 0.0, 20.0]),
            (poisoned([None, None, 10.0]), [0.0, 0.0, 20.0]),
        ],
    )
    def test_with_a_gradient(self, seed: Any, expected: list[float]) -> None:
        x = known_and_not()
        (x * 2).backward(gradient=seed)
        assert x._values.grad.tolist() == expected

    def test_backward_is_refused_where_torch_refuses_it(self) -> None:
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

    def test_of_an_unspecified_scalar_sends_zeros(self) -> None:
        data = leaf(nan, float("inf"))
        mg.masked(data, on(0, 0)).amax().backward()
        assert data.grad is not None
        assert data.grad.tolist() == [0.0, 0.0]

    def test_to_chosen_inputs(self) -> None:
        x, w = known_and_not(), leaf(1.0, 1.0, 1.0)
        (x * w).sum().backward(inputs=[x])
        assert x.grad is not None
        assert w.grad is None
        (x * w).sum().backward(inputs=[w])
        assert_entries(w.grad, [1.0, 0.0, 3.0])


class TestHooks:
    @pytest.mark.parametrize(
        ("hook", "expected"),
        [
            (lambda g: None, [1.0, 0.0, 1.0]),
            (lambda g: g * 10, [10.0, 0.0, 10.0]),
            (lambda g: (g * 10).filled(nan), [10.0, 0.0, 10.0]),
            (lambda g: mg.masked(g, on(0, 1, 1)), [0.0, 0.0, 1.0]),
        ],
        ids=["nothing", "masked", "plain", "fewer entries"],
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
        seen, x = [], known_and_not()
        x.register_post_accumulate_grad_hook(lambda t: seen.append((t is x, t.grad.tolist())))
        x.sum().backward()
        assert seen == [(True, [1.0, None, 1.0])]
        with pytest.raises(RuntimeError, match="non-leaf"):
            (x * 2).register_post_accumulate_grad_hook(lambda t: None)

    def test_leave_other_uses_of_the_plain_tensor_alone(self) -> None:
        w = leaf(1.0, 2.0)
        x = mg.masked(w, on(1, 0))
        x.register_hook(lambda g: g * 10)
        (x.sum() + (w * torch.tensor([0.0, 7.0])).sum()).backward()
        assert w.grad.tolist() == [10.0, 7.0]

    @pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning")
    @pytest.mark.parametrize("first", [False, True])
    @pytest.mark.parametrize("layout", ["coo", "csr"])
    def test_on_sparse_leaves_of_torch(self, layout: str, first: bool) -> None:
        data = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
        t = data.to_sparse(layout=getattr(torch, f"sparse_{layout}"))
        t.requires_grad_()
        seen: list[Any] = []

        def register() -> None:
            t.register_hook(lambda g: seen.append(("gradient", g.layout)))
            t.register_post_accumulate_grad_hook(lambda leaf: seen.append(("accumulated", leaf.grad.layout)))

        if first:
            register()
        total = mg.from_sparse(t).sum()
        if not first:
            register()
        total.backward()
        assert seen == [("gradient", t.layout), ("accumulated", t.layout)]
        assert t.grad.to_dense().tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_detaching_in_place_leaves_the_plain_tensor_in_its_graph() -> None:
    hidden = leaf(1.0, nan) * 2
    x = mg.masked(hidden, on(1, 0))
    assert x.detach_() is x
    assert not x.requires_grad
    assert hidden.requires_grad


def test_requires_grad_in_place() -> None:
    x = poisoned([1.0, None])
    assert x.requires_grad_() is x
    assert x.requires_grad
    assert not x.requires_grad_(False).requires_grad
    with pytest.raises(RuntimeError, match="floating point"):
        poisoned([1, None], torch.int64).requires_grad_()
