"""Where graphs break, operations run in plain Python, and none takes the graph of another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nan, nn
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

import maskgrad as mg
from tests.poison import assert_entries, on

X, Y = [[0.5, 2.0], [3.0, nan]], [[1.5, 1.0], [nan, nan]]
ONES = torch.ones(2, 2)
OURS = str(Path(mg.__file__).parent)
MASKS = on(1, 1, 1, 0).reshape(2, 2), on(1, 1, 0, 0).reshape(2, 2)

#: Operations of one signature, which must not take each other's graph.
FAMILIES: dict[str, tuple[Callable[..., Any], ...]] = {
    "methods": (lambda x, y: x.sub(y), lambda x, y: x.add(y), lambda x, y: x.maximum(y)),
    "on the right": (lambda _, y: ONES.sub(y), lambda _, y: ONES.add(y), lambda _, y: torch.eq(ONES, y)),
    "operators": (lambda x, y: x - y, lambda x, y: x * y, lambda x, y: y - x, lambda x, y: x > y),
    "one operand": (lambda x, _: x.sin(), lambda x, _: -x, lambda x, _: x.exp()),
    "reductions": (lambda x, _: x.sum(0), lambda x, _: x.prod(0), lambda x, _: x.amax(0)),
    "views": (lambda x, _: x.t(), lambda x, _: x.flip(0), lambda x, _: x.unsqueeze(0)),
    "writes": (lambda x, y: x.sub_(y), lambda x, y: x.mul_(y), lambda x, _: x.neg_()),
}


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch.compiler.reset()
    clear_compilation_metrics()
    yield
    torch.compiler.reset()


def operands() -> list[mg.MaskedTensor]:
    return [mg.masked(torch.tensor(data), mask.clone()) for data, mask in zip((X, Y), MASKS, strict=True)]


def behind_a_broken_graph(function: Callable[[], Any]) -> Any:
    """Call it in a function that Dynamo gives up: what it calls may be compiled."""

    @torch._dynamo.disable(recursive=False)
    def apply() -> Any:
        return function()

    return torch.compile(lambda: [apply()], backend="eager")()[0]


def compiled_of_ours() -> set[tuple[str, str]]:
    """The frames of maskgrad that Dynamo has compiled since the test began; what dataclasses write has no file."""
    found = {(str(metrics.co_filename), str(metrics.co_name)) for metrics in get_compilation_metrics()}
    return {frame for frame in found if frame[0].startswith((OURS, "<string>"))}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_operation_is_itself(family: str) -> None:
    for function in FAMILIES[family]:
        expected = function(*operands())
        found = behind_a_broken_graph(lambda: function(*operands()))  # noqa: B023
        assert_entries(found, expected.tolist())


def test_after_a_write_that_is_not_compiled() -> None:
    def program(x: mg.MaskedTensor, y: mg.MaskedTensor) -> Any:
        signs = x.sign()
        signs.squeeze()
        signs.sub_(y)
        return torch.eq(x, y)

    assert_entries(torch.compile(program, backend="eager")(*operands()), [[False, False], [None, None]])


def test_a_function_of_ours_is_compiled_by_itself() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    made = torch.compile(mg.from_nan, backend=backend, fullgraph=True)(torch.tensor([1.0, nan]))
    assert_entries(made, [1.0, None])
    assert len(graphs) == 1


LENGTHS = torch.tensor([3, 1])


def words(layout: torch.layout = torch.strided) -> mg.MaskedTensor:
    return mg.from_lengths(torch.randn(2, 3, 4), LENGTHS, layout=layout)


def trained(table: nn.Module) -> None:
    table(torch.tensor([[1, 2]])).sum().backward()
    optimizer = mg.optim.Adam(table.parameters(), unspecified="zero")
    optimizer.step()


def accumulated(model: nn.Module) -> None:
    accumulator = mg.GradientAccumulator(model.parameters())
    accumulator.backward(model(words()).square())
    accumulator.finish()


def clipped(p: Tensor) -> Tensor:
    p.square().sum().backward()
    return mg.clip_grad_norm_([p], 1.0)


LEAF = nn.Parameter(torch.randn(2, 3))

PROGRAMS: dict[str, Callable[[], Any]] = {
    "GRU": lambda: nn.GRU(4, 5, batch_first=True)(words()),
    "GRU, jagged": lambda: nn.GRU(4, 5, batch_first=True)(words(torch.jagged)),
    "attention, jagged": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)(words(torch.jagged)),
    "sequences": lambda: mg.from_sequences([torch.randn(2), torch.randn(3)]).last(),
    "reading": lambda: (repr(words()), words().tolist(), words().unique(), words()[0]),
    "writing": lambda: words().__setitem__((0, 0), 1.0),
    "table": lambda: trained(mg.nn.Embedding(5, 3)),
    "clipping": lambda: clipped(LEAF),
    "accumulation": lambda: accumulated(nn.Linear(4, 1)),
    "distribution": lambda: torch.distributions.Normal(words(), 1.0).log_prob(words()),
}


@pytest.mark.filterwarnings("ignore")  # of what Dynamo thinks of the programs
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_ours_is_compiled_by_itself(name: str) -> None:
    behind_a_broken_graph(PROGRAMS[name])
    assert not compiled_of_ours()


class Recurrent(nn.Module):
    """A recurrent layer between others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 5, batch_first=True, bidirectional=True, num_layers=2)
        self.last = nn.Linear(10, 1)

    def forward(self, x: Any) -> Any:
        """Scores of the sequences."""
        return self.last(self.inner(x.tanh())[0]).sum(1).filled(0.0)


def assert_equal_with_gradients(ours: Callable[..., Any], model: nn.Module, x: mg.MaskedTensor) -> None:
    results = [function(x) for function in (ours, model)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(
        *[torch.autograd.grad(y.square().sum(), [*model.parameters()]) for y in results]
    )


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_recurrent_layer_is_uncompiled_but_where_pytorch_allows_it(
    layout: torch.layout, is_allowed: bool
) -> None:
    model = Recurrent()
    # "eager": aot_eager fails on PyTorch's own LSTM of two layers, too
    fast = torch.compile(model, backend="eager", fullgraph=is_allowed)
    with torch._dynamo.config.patch(allow_rnn=is_allowed):
        for lengths in (
            [6, 2, 4],
            [1, 6, 5],
            [3, 6, 3],
        ):  # 12 steps: jagged batches recompile at other numbers
            later = (
                mg.assert_no_recompile() if lengths[0] != 6 and not is_allowed else contextlib.nullcontext()
            )
            steps = torch.tensor(lengths)
            values = torch.randn(3, 6, 4).masked_fill(torch.arange(6)[:, None] >= steps[:, None, None], nan)
            with later:
                assert_equal_with_gradients(fast, model, mg.from_lengths(values, steps, layout=layout))
    assert is_allowed or not compiled_of_ours()
