"""Where graphs break, operations run in plain Python, and none takes the graph of another."""

from __future__ import annotations

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

FAMILIES: dict[str, tuple[Callable[..., Any], ...]] = {
    "methods": (
        lambda x, y: x.sub(y),
        lambda x, y: x.add(y),
        lambda x, y: x.mul(y),
        lambda x, y: x.maximum(y),
    ),
    "on the right": (lambda _, y: ONES.sub(y), lambda _, y: ONES.add(y), lambda _, y: torch.eq(ONES, y)),
    "operators": (lambda x, y: x - y, lambda x, y: x * y, lambda x, y: y - x, lambda x, y: x > y),
    "one operand": (lambda x, _: x.sin(), lambda x, _: x.cos(), lambda x, _: -x, lambda x, _: x.exp()),
    "reductions": (
        lambda x, _: x.sum(0),
        lambda x, _: x.prod(0),
        lambda x, _: x.amax(0),
        lambda x, _: x.mean(0),
    ),
    "views": (
        lambda x, _: x.t(),
        lambda x, _: x.flip(0),
        lambda x, _: x.unsqueeze(0),
        lambda x, _: x.cumsum(0),
    ),
    "writes": (lambda x, y: x.sub_(y), lambda x, y: x.mul_(y), lambda x, _: x.neg_(), lambda x, _: x.exp_()),
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
    "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True)(words(), words(), words()),
    "attention, jagged": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)(words(torch.jagged)),
    "norms": lambda: nn.BatchNorm1d(3)(words()),
    "sequences": lambda: mg.from_sequences([torch.randn(2), torch.randn(3)]).last(),
    "layouts": lambda: words().to_jagged().to_dense().sum(-1).to_sparse(layout=torch.sparse_csr),
    "sparse": lambda: mg.from_sparse(torch.eye(3).to_sparse_csr()) @ torch.randn(3, 2),
    "reading": lambda: (repr(words()), words().tolist(), words().unique(), words()[0]),
    "writing": lambda: words().__setitem__((0, 0), 1.0),
    "functional": lambda: mg.functional.softmax(ONES, 1, mask=MASKS[0]),
    "coalesce": lambda: mg.sparse.coalesce(torch.eye(3).to_sparse()),
    "align": lambda: mg.align(words(), words()),
    "table": lambda: trained(mg.nn.Embedding(5, 3)),
    "bags": lambda: trained(mg.nn.EmbeddingBag(5, 3)),
    "convolution": lambda: mg.nn.Conv1d(3, 3, 2)(words()),
    "clipping": lambda: clipped(LEAF),
    "accumulation": lambda: accumulated(nn.Linear(4, 1)),
    "gradients per sample": lambda: mg.per_sample_grad(nn.Linear(4, 1), lambda y: y.sum(), words()),
    "gradients of a batch": lambda: mg.batched_grad(LEAF.square(), LEAF),
    "penalty": lambda: mg.gradient_penalty(LEAF.square().sum(), [LEAF]),
    "masked gradient": lambda: mg.mask_gradient(LEAF, torch.ones(2, 3).bool()).sum().backward(),
    "frozen entries": lambda: mg.train_only(nn.Parameter(torch.randn(2)), torch.tensor([True, False])),
    "distribution": lambda: torch.distributions.Normal(words(), 1.0).log_prob(words()),
}


@pytest.mark.filterwarnings("ignore")  # of what Dynamo thinks of the programs
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_ours_is_compiled_by_itself(name: str) -> None:
    behind_a_broken_graph(PROGRAMS[name])
    assert not compiled_of_ours()


class Recurrent(nn.Module):
    """A recurrent layer between others."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.inner = kind(4, 5, batch_first=True, **options)
        self.last = nn.Linear(5 * (2 if self.inner.bidirectional else 1), 1)

    def forward(self, x: Any) -> Any:
        """Scores of the sequences."""
        return self.last(self.inner(x.tanh())[0]).sum(1).filled(0.0)


RECURRENT = pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.GRU, {}), (nn.LSTM, {"bidirectional": True, "num_layers": 2}), (nn.RNN, {"nonlinearity": "relu"})],
    ids=["gru", "lstm", "rnn"],
)
LAYOUTS = pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)


def assert_equal_with_gradients(ours: Callable[..., Any], model: nn.Module, x: mg.MaskedTensor) -> None:
    results = [function(x) for function in (ours, model)]
    torch.testing.assert_close(*results)
    ours_, theirs = (torch.autograd.grad(y.square().sum(), list(model.parameters())) for y in results)
    torch.testing.assert_close(ours_, theirs)


def batches(layout: torch.layout) -> Iterator[mg.MaskedTensor]:
    for lengths in ([6, 2, 4], [1, 6, 5], [3, 6, 3]):  # 12 steps: jagged batches recompile at other numbers
        values = torch.randn(3, 6, 4).masked_fill(
            torch.arange(6)[:, None] >= torch.tensor(lengths)[:, None, None], nan
        )
        yield mg.from_lengths(values, torch.tensor(lengths), layout=layout)


@RECURRENT
@LAYOUTS
def test_a_recurrent_layer_is_one_uncompiled_call(kind: Any, options: Any, layout: torch.layout) -> None:
    model = Recurrent(kind, **options)
    fast = torch.compile(model, backend="eager")
    first, *others = batches(layout)
    assert_equal_with_gradients(fast, model, first)
    assert not compiled_of_ours()
    with mg.assert_no_recompile():
        for x in others:
            assert_equal_with_gradients(fast, model, x)


@RECURRENT
@LAYOUTS
def test_a_recurrent_layer_is_part_of_the_graph_where_pytorch_allows_it(
    kind: Any, options: Any, layout: torch.layout
) -> None:
    model = Recurrent(kind, **options)
    # "eager": aot_eager fails on PyTorch's own LSTM of two layers, too
    fast = torch.compile(model, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        for x in batches(layout):
            assert_equal_with_gradients(fast, model, x)
