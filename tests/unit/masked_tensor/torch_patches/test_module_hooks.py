"""Hooks of modules see MaskedTensors and may return them; what they return wrongly is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_full_backward_hook

import maskgrad as mg
from tests.poison import assert_entries, leaf, nan, on, poisoned

LAYOUTS = [torch.sparse_coo, torch.sparse_csr]


class Double(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


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
        module, seen, x = Double(), [], known_and_not()
        module.register_full_backward_hook(lambda m, gi, go: seen.append((m, gi, go)))
        y = module(x)
        assert_entries(y, [2.0, None, 6.0])
        y.square().sum().backward()
        ((called, (grad_input,), (grad_output,)),) = seen
        assert called is module
        assert_entries(grad_input, [8.0, None, 24.0])
        assert_entries(grad_output, [4.0, None, 12.0])
        assert_entries(x.grad, [8.0, None, 24.0])

    def test_pre_hooks_replace_what_comes_in(self) -> None:
        module, x, seen = Double(), known_and_not(), []
        module.register_full_backward_pre_hook(lambda m, go: (go[0] * 5,))
        module.register_full_backward_pre_hook(lambda m, go: seen.append(go[0].tolist()))
        module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].tolist()))
        module(x).sum().backward()
        assert seen == [[5.0, None, 5.0], [5.0, None, 5.0]]
        assert x._values.grad.tolist() == [10.0, 0.0, 10.0]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_sparse_layouts(self, layout: torch.layout) -> None:
        x = mg.masked(torch.tensor([[1.0, 0.0], [0.0, 3.0]]).double(), on([1, 0], [0, 1])).to_sparse(layout)
        x.requires_grad_()
        module = Double()
        module.register_full_backward_hook(lambda m, gi, go: (gi[0] * gi[0],))
        module(x).sum().backward()
        assert x.grad.layout == layout
        assert_entries(x.grad.to_dense(), [[4.0, None], [None, 4.0]])

    def test_hooks_for_all_modules_and_removal(self) -> None:
        seen, x = [], known_and_not()
        handle = register_module_full_backward_hook(lambda m, gi, go: seen.append(type(gi[0])))
        try:
            nn.ReLU()(x).sum().backward()
            nn.ReLU()(leaf(1.0)).sum().backward()  # plain as before
        finally:
            handle.remove()
        nn.ReLU()(x).sum().backward()
        assert seen == [mg.MaskedTensor, Tensor]

    def test_several_inputs_and_results_masked_and_plain(self) -> None:
        module, x, w, seen = Both(), known_and_not(), leaf(2.0, 3.0, 4.0), []
        module.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go)))
        pair = module(x, w)
        assert type(pair) is Pair
        (pair.left.sum() + pair.right.sum()).backward()
        (((for_x, for_w), (for_left, for_right)),) = seen
        assert_entries(for_x, [2.0, None, 4.0])
        assert type(for_w) is Tensor
        assert for_w.tolist() == [4.0, 3.0, 6.0]
        assert_entries(for_left, [1.0, None, 1.0])
        assert type(for_right) is Tensor

    def test_modules_that_make_or_end_masks(self) -> None:
        class Mask(nn.Module):
            def forward(self, x: Tensor) -> Any:
                return mg.masked(x, on(1, 0, 1))

        class Fill(nn.Module):
            def forward(self, x: Any) -> Tensor:
                return x.filled(0.0)

        net, seen, x = nn.Sequential(Mask(), nn.Softplus(), Fill()), [], leaf(0.0, nan, 0.0)
        for module in net:
            module.register_full_backward_hook(lambda m, gi, go: seen.append((type(gi[0]), type(go[0]))))
        net(x).sum().backward()
        assert seen == [
            (mg.MaskedTensor, Tensor),
            (mg.MaskedTensor, mg.MaskedTensor),
            (Tensor, mg.MaskedTensor),
        ]
        assert x.grad.tolist() == [0.5, 0.0, 0.5]

    def test_what_torch_says_of_other_results_is_still_said(self) -> None:
        class Listed(nn.Module):
            def forward(self, x: Any) -> Any:
                return [x * 2]

        module = Listed()
        module.register_full_backward_hook(lambda m, gi, go: None)
        with pytest.warns(UserWarning, match="module output should be a Tensor or a tuple of Tensors"):
            module(known_and_not())

    @pytest.mark.parametrize(
        ("wrong", "kind", "words"),
        [
            (lambda g: g, RuntimeError, "got 3, but expected 1"),
            (lambda g: (g, g.filled(0.0)), RuntimeError, "got 2, but expected 1"),
            (lambda g: (1.0,), TypeError, "expected Variable, but hook returned"),
            (lambda g: (g[:2],), RuntimeError, r"shape \(3,\), found \(2,\)"),
        ],
    )
    @pytest.mark.parametrize("pre", [False, True])
    def test_must_return_gradients(self, wrong: Any, kind: type[Exception], words: str, pre: bool) -> None:
        module, x = Double(), known_and_not()
        if pre:
            module.register_full_backward_pre_hook(lambda m, go: wrong(go[0]))
        else:
            module.register_full_backward_hook(lambda m, gi, go: wrong(gi[0]))
        with pytest.raises(kind, match=words):
            module(x).sum().backward()

    def test_must_return_the_pattern_of_a_sparse_layout(self) -> None:
        data = torch.tensor([[1.0, 2.0], [0.0, 3.0]]).double()
        x = mg.masked(data, on([1, 1], [0, 1])).to_sparse().requires_grad_()
        other = mg.masked(data, on([1, 0], [1, 1])).to_sparse()
        module = Double()
        module.register_full_backward_hook(lambda m, gi, go: (other,))
        with pytest.raises(RuntimeError, match="must have its pattern"):
            module(x).sum().backward()

    def test_must_not_return_a_pattern_for_a_plain_tensor(self) -> None:
        module, x, w = Both(), known_and_not(), leaf(2.0, 3.0, 4.0)
        module.register_full_backward_hook(lambda m, gi, go: (gi[0], gi[0]))
        with pytest.raises(
            TypeError, match=r"gradient 1, which belongs to a plain tensor; return its .filled\(0.\)"
        ):
            module(x, w)[0].sum().backward()


def test_forward_hooks_see_and_replace_masked_tensors() -> None:
    module, seen, x = Double(), [], known_and_not()
    module.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    module.register_forward_hook(lambda m, args, out: seen.append((args[0].tolist(), out.tolist())))
    module.register_forward_hook(lambda m, args, out: mg.masked(out, on(1, 1, 0)))
    assert_entries(module(x), [4.0, None, None])
    assert seen == [([2.0, None, 4.0], [4.0, None, 8.0])]


@pytest.mark.filterwarnings("ignore:Using.*non-full backward hook:FutureWarning")
def test_hooks_of_the_old_kind_are_refused() -> None:
    """PyTorch takes first parts of the result until it finds a tensor."""
    layer = nn.Tanh()
    layer.register_backward_hook(lambda *_: None)
    with pytest.raises(IndexError, match="use register_full_backward_hook"):
        layer(mg.from_nan(torch.randn(2, 3, requires_grad=True)))
