"""torch.compile and torch.export: one graph, one compilation for all masks, the numbers of eager execution."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, vmap

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on, poisoned

# What torch.compile says of itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script.* is deprecated:DeprecationWarning"),
]

COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod]
SQUARE = [[1.0, 2.0, None], [3.0, None, 4.0], [None, 5.0, 6.0]]
PLAIN = torch.tensor([[1.0, 2.0, 3.0], [0.5, 1.0, 2.0], [2.0, 4.0, 1.0]]).double()


def masks(shape: tuple[int, ...]) -> list[Tensor]:
    """Ten masks, the empty and the full one among them."""
    return [torch.zeros(shape).bool(), torch.ones(shape).bool(), *(torch.rand(shape) < 0.5 for _ in range(8))]


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True), counter


def assert_same(ours: Any, theirs: Any, label: str = "") -> None:
    assert type(ours) is type(theirs), label
    if isinstance(ours, mg.MaskedTensor):
        assert torch.equal(ours.mask, theirs.mask), label
        ours, theirs = ours.filled(0), theirs.filled(0)
    torch.testing.assert_close(ours, theirs, msg=lambda text: f"{label}: {text}", equal_nan=True)


class TestOperators:
    @staticmethod
    def operands(kind: str) -> tuple[Any, Any]:
        x = poisoned(SQUARE)
        other = poisoned([[2.0, None, 1.0], [None, 1.5, 3.0], [2.0, 2.0, None]])
        return {"mt": (x, PLAIN), "tm": (PLAIN, x), "mm": (x, other), "ms": (x, 2), "sm": (2, x)}[kind]

    @pytest.mark.parametrize("kind", ["mt", "tm", "mm", "ms", "sm"])
    def test_both_orders_give_eager_results(self, kind: str) -> None:
        operators = ARITHMETIC + COMPARISONS + ([operator.matmul] if "s" not in kind else [])

        def everything(a: Any, b: Any) -> list[Any]:
            return [function(a, b) for function in operators]

        results = compiled(everything)[0](*self.operands(kind))
        for function, ours, theirs in zip(operators, results, everything(*self.operands(kind)), strict=True):
            assert_same(ours, theirs, function.__name__)

    @pytest.mark.parametrize("kind", ["mt", "mm", "ms"])
    def test_augmented_assignment_gives_eager_results(self, kind: str) -> None:
        operators = IN_PLACE + ([operator.imatmul] if "s" not in kind else [])

        def everything(a: Any, b: Any) -> list[Any]:
            return [function(a + 0, b) for function in operators]

        results = compiled(everything)[0](*self.operands(kind))
        for function, ours, theirs in zip(operators, results, everything(*self.operands(kind)), strict=True):
            assert_same(ours, theirs, function.__name__)

    def test_statements(self) -> None:
        def statements(x: mg.MaskedTensor, w: Tensor) -> tuple[Any, ...]:
            y = x @ w
            y @= w
            y **= 2
            y -= 1
            z = w @ x
            z[0] = 5.0
            z[z.mask & (w > 2)] = mg.unspecified
            return y, z, -x, ~(x > 2), abs(x), x.T @ x

        for ours, theirs in zip(
            compiled(statements)[0](poisoned(SQUARE), PLAIN), statements(poisoned(SQUARE), PLAIN), strict=True
        ):
            assert_same(ours, theirs)

    def test_methods_in_place(self) -> None:
        def function(x: mg.MaskedTensor) -> Any:
            y = x * 1
            y.add_(1).sqrt_()
            return F.relu(y - 2, inplace=True)

        assert_same(compiled(function)[0](poisoned(SQUARE)), function(poisoned(SQUARE)))

    @pytest.mark.parametrize("operand", [inf, nan])
    def test_a_broken_entry_under_the_mask_does_not_spread(self, operand: float) -> None:
        x = mg.masked(torch.tensor([[1.0, operand]]), on([1, 0]))
        assert_entries(compiled(lambda v: v @ torch.ones(2, 1))[0](x), [[1.0]])


class TestOneCompilation:
    def test_masked_input_and_target_forward_and_backward(self) -> None:
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

        def loss_of(x: mg.MaskedTensor, y: mg.MaskedTensor) -> mg.MaskedTensor:
            return F.mse_loss(net(x), y)

        fast, counter = compiled(loss_of)
        data, target = torch.randn(6, 3), torch.randn(6, 2)
        for seen, asked in zip(masks((6, 3)), masks((6, 2)), strict=True):
            x = mg.masked(data.masked_fill(~seen, nan), seen)
            y = mg.masked(target.masked_fill(~asked, inf), asked)
            grads = []
            for function in (fast, loss_of):
                net.zero_grad()
                loss = function(x, y)
                loss.backward()
                grads.append(
                    [loss.tolist(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
                )
            assert (grads[0][0] is None) == (grads[1][0] is None)
            torch.testing.assert_close(grads[0][1:], grads[1][1:])
        assert counter.frame_count == 1

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x.mean(0),
            lambda x: x.std(1),
            lambda x: x.amax(1),
            lambda x: x.max(1).indices,
            lambda x: x.norm(dim=0),
            lambda x: torch.cat([x, x.flip(0)]).T[1:],
            lambda x: torch.where(x > 0, x.log(), x.exp()),
            lambda x: x.filled(0.0),
            lambda x: x.num_specified(),
        ],
    )
    def test_whatever_the_mask(self, function: Any) -> None:
        fast, counter = compiled(function)
        data = torch.randn(4, 3).double()
        for mask in masks((4, 3)):
            x = mg.masked(data.masked_fill(~mask, nan), mask)
            assert_same(fast(x), function(x))
        assert counter.frame_count == 1

    def test_made_inside_the_graph(self) -> None:
        def function(data: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Any, ...]:
            x = mg.masked(data, mask)
            return x.sum(1), mg.from_nan(data).mean(), mg.from_lengths(data, lengths).amax(1), x.filled(0.0)

        fast, counter = compiled(function)
        for mask in masks((4, 3)):
            arguments = (torch.randn(4, 3).masked_fill(~mask, nan), mask, mask.sum(1))
            for ours, theirs in zip(fast(*arguments), function(*arguments), strict=True):
                assert_same(ours, theirs)
        assert counter.frame_count == 1

    def test_as_an_attribute_of_a_module(self) -> None:
        class Weighted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.observed = poisoned([1.0, None, 3.0], torch.float32)
                self.scale = nn.Parameter(torch.tensor([2.0, inf, 4.0]))

            def forward(self, x: Tensor) -> mg.MaskedTensor:
                return (self.observed * self.scale * x).sum()

        module = Weighted()
        fast, counter = compiled(module)
        for x in torch.randn(3, 3):
            assert_same(fast(x), module(x))
            fast(x).backward()
        assert module.scale.grad is not None
        assert module.scale.grad[1] == 0
        assert counter.frame_count == 1

    def test_in_a_structure(self) -> None:
        fast, counter = compiled(lambda batch: {"y": [batch["x"] + 1], "n": batch["x"].num_specified()})
        for mask in masks((3,)):
            result = fast({"x": mg.masked(torch.zeros(3).masked_fill(~mask, nan), mask)})
            assert result["n"] == mask.sum()
            assert torch.equal(result["y"][0].mask, mask)
        assert counter.frame_count == 1


def test_the_default_backend() -> None:
    def function(x: mg.MaskedTensor, w: Tensor) -> mg.MaskedTensor:
        return (x @ w).relu().mean()

    fast = torch.compile(function, fullgraph=True)
    for mask in masks((3, 3))[:4]:
        x = mg.masked(PLAIN.masked_fill(~mask, nan), mask)
        w = PLAIN.clone().requires_grad_()
        assert_same(fast(x, w), function(x, w))
        fast(x, w).backward()
        ours, w.grad = w.grad, None
        function(x, w).backward()
        torch.testing.assert_close(ours, w.grad)


class TestTransformations:
    def test_vmap(self) -> None:
        fast, counter = compiled(vmap(lambda row: row.mean()))
        for mask in masks((4, 3)):
            x = mg.masked(torch.randn(4, 3).masked_fill(~mask, nan), mask)
            assert_same(fast(x), x.mean(1).filled(nan))  # a number for each row
        assert counter.frame_count == 1

    def test_gradients_per_sample(self) -> None:
        def loss(w: Tensor, x: mg.MaskedTensor) -> Tensor:
            return (x * w).square().sum()

        per_sample = vmap(grad(loss), in_dims=(None, 0))
        fast, counter = compiled(per_sample)
        for mask in masks((4, 3)):
            x = mg.masked(torch.randn(4, 3).masked_fill(~mask, nan), mask)
            assert_same(fast(torch.ones(3), x), per_sample(torch.ones(3), x))
        assert counter.frame_count == 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: mg.MaskedTensor) -> Tensor:
        y = self.layer(x).relu()
        return torch.cat([y.filled(-1.0), (x @ x.mT).mean(1, keepdim=True).filled(-1.0)], 1)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    model = Model()
    data = torch.randn(4, 3)
    traced, *others = masks((4, 3))
    program = torch.export.export(model, (mg.masked(data.masked_fill(~traced, nan), traced),), strict=strict)
    for mask in others:
        x = mg.masked(data.masked_fill(~mask, nan), mask)
        torch.testing.assert_close(program.module()(x), model(x))


def test_export_with_a_masked_result() -> None:
    class Half(nn.Module):
        def forward(self, x: mg.MaskedTensor) -> mg.MaskedTensor:
            return x / 2

    program = torch.export.export(Half(), (poisoned([1.0, None]),))
    assert_entries(program.module()(poisoned([None, 4.0])), [None, 2.0])
