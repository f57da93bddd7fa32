"""Hooks of modules see MaskedTensors and may return them; what they return wrongly is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import assert_entries, leaf, nan, on, poisoned


class Pair(NamedTuple):
    left: Any
    right: Any


class Both(nn.Module):
    """Two inputs, two results."""

    def forward(self, x: Any, w: Any) -> Any:
        return Pair(x * w, w * 3)


def known_and_not() -> mg.MaskedTensor:
    return poisoned([1.0, None, 3.0], requires_grad=True)


class TestBackwardHooks:
    def test_see_gradients_with_their_patterns(self) -> None:
        module, x, w, seen = Both(), known_and_not(), leaf(2.0, 3.0, 4.0), []
        module.register_full_backward_pre_hook(lambda m, go: (go[0] * 5, None))
        module.register_full_backward_pre_hook(lambda m, go: seen.append(go))
        module.register_full_backward_hook(lambda m, gi, go: seen.append(gi))
        pair = module(x, w)
        assert type(pair) is Pair
        (pair.left.sum() + pair.right.sum()).backward()
        (for_left, for_right), (for_x, for_w) = seen
        assert_entries(for_left, [5.0, None, 5.0])
        assert for_right is None
        assert_entries(for_x, [10.0, None, 20.0])
        assert type(for_w) is Tensor
        assert for_w.tolist() == [5.0, 0.0, 15.0]
        assert_entries(x.grad, [10.0, None, 20.0])

    @pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
    def test_sparse_layouts(self, layout: torch.layout) -> None:
        data, module = torch.tensor([[1.0, 2.0], [0.0, 3.0]]).double(), nn.ReLU()
        x = mg.masked(data, on([1, 0], [0, 1])).to_sparse(layout).requires_grad_()
        module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 4,))
        module(x).sum().backward()
        assert x.grad.layout == layout
        assert_entries(x.grad.to_dense(), [[4.0, None], [None, 4.0]])
        other = mg.masked(data, on([1, 0], [1, 0])).to_sparse(layout)
        module.register_full_backward_hook(lambda m, gi, go: (other,))
        with pytest.raises(RuntimeError, match="must have its pattern"):
            module(x).sum().backward()

    def test_modules_that_make_or_end_masks(self) -> None:
        class Mask(nn.Module):
            def forward(self, x: Tensor) -> Any:
                return mg.masked(x, on(1, 0, 1))

        class Fill(nn.Module):
            def forward(self, x: Any) -> Tensor:
                return x.filled(0.0)

        net, seen, x = nn.Sequential(Mask(), Fill()), [], leaf(0.0, nan, 0.0)
        for module in net:
            module.register_full_backward_hook(lambda m, gi, go: seen.append((type(gi[0]), type(go[0]))))
        net(x).sum().backward()
        assert seen == [(mg.MaskedTensor, Tensor), (Tensor, mg.MaskedTensor)]
        assert x.grad.tolist() == [1.0, 0.0, 1.0]

    @pytest.mark.every
    @pytest.mark.parametrize(
        ("wrong", "kind", "words"),
        [
            (lambda g: g, RuntimeError, "got 3, but expected 1"),
            (lambda g: (1.0,), TypeError, "expected Variable, but hook returned"),
            (lambda g: (g[:2],), RuntimeError, r"shape \(3,\), found \(2,\)"),
        ],
    )
    @pytest.mark.parametrize("pre", [False, True])
    def test_must_return_gradients(self, wrong: Any, kind: type[Exception], words: str, pre: bool) -> None:
        module, x = nn.ReLU(), known_and_not()
        if pre:
            module.register_full_backward_pre_hook(lambda m, go: wrong(go[0]))
        else:
            module.register_full_backward_hook(lambda m, gi, go: wrong(gi[0]))
        with pytest.raises(kind, match=words):
            module(x).sum().backward()

    def test_must_not_return_a_pattern_for_a_plain_tensor(self) -> None:
        module = Both()
        module.register_full_backward_hook(lambda m, gi, go: (gi[0], gi[0]))
        with pytest.raises(
            TypeError, match=r"gradient 1, which belongs to a plain tensor; return its .filled\(0.\)"
        ):
            module(known_and_not(), leaf(2.0, 3.0, 4.0))[0].sum().backward()


@pytest.mark.filterwarnings("ignore:Using.*non-full backward hook:FutureWarning")
def test_hooks_of_the_old_kind_are_refused() -> None:
    """PyTorch takes first parts of the result until it finds a tensor."""
    layer = nn.Tanh()
    layer.register_backward_hook(lambda *_: None)
    with pytest.raises(IndexError, match="use register_full_backward_hook"):
        layer(mg.from_nan(torch.randn(2, 3, requires_grad=True)))
