"""Recurrent modules, unmodified: every sequence of a padded or jagged batch as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

import maskgrad as mg
from tests.poison import nan

D = torch.float64
LENGTHS = [5, 2, 0, 7]
STEPS = 8
ROWS = torch.arange(STEPS) < torch.tensor(LENGTHS)[:, None]
KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "LSTM": (nn.LSTM, {}),
    "LSTM with projection": (nn.LSTM, {"proj_size": 2}),
    "GRU": (nn.GRU, {}),
}
on_both_layouts = pytest.mark.parametrize("layout", [torch.strided, torch.jagged])


def batch(layout: torch.layout) -> tuple[Tensor, mg.MaskedTensor]:
    """A leaf with NaN in its padding, and the batch of it."""
    x = torch.where(ROWS[..., None], torch.randn(len(LENGTHS), STEPS, 4, dtype=D), nan).requires_grad_()
    return x, mg.from_lengths(x, torch.tensor(LENGTHS), layout=layout)


def states(module: Any) -> list[Tensor]:
    runs = module.num_layers * (2 if module.bidirectional else 1)
    widths = [module.proj_size or module.hidden_size]
    if isinstance(module, nn.LSTM):
        widths.append(module.hidden_size)
    return [torch.randn(runs, len(LENGTHS), width, dtype=D, requires_grad=True) for width in widths]


def packed(parts: Any) -> Any:
    return tuple(parts) if len(parts) == 2 else parts[0]


def listed(parts: Any) -> list[Any]:
    return list(parts) if isinstance(parts, tuple) else [parts]


def alone(module: Any, x: Tensor, hx: list[Tensor]) -> list[Tensor]:
    """The oracle, a loop over the sequences: their outputs one behind the other, and the final states."""
    outputs, finals = [], []
    for i, length in enumerate(LENGTHS):
        ends = [state[:, i : i + 1].contiguous() for state in hx]
        if length:
            part = x[i : i + 1, :length]
            its, last = module(part if module.batch_first else part.transpose(0, 1), packed(ends))
            outputs.append(its.flatten(0, 1))
            ends = listed(last)
        finals.append(ends)
    return [torch.cat(outputs), *[torch.cat(parts, 1) for parts in zip(*finals, strict=True)]]


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:LSTM with projections:UserWarning")
@on_both_layouts
@pytest.mark.parametrize(
    ("layers", "both", "batch_first"), [(1, False, True), (2, True, False), (2, False, True)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_sequence_as_if_it_were_alone(
    kind: str, layers: int, both: bool, batch_first: bool, layout: torch.layout
) -> None:
    cls, options = KINDS[kind]
    module = cls(4, 3, layers, bidirectional=both, batch_first=batch_first, dtype=D, bias=both, **options)
    (x, m), hx = batch(layout), states(module)
    leaves = [x, *hx, *module.parameters()]
    with torch.autograd.set_detect_anomaly(True):
        out, final = module(m if batch_first else m.transpose(0, 1), packed(hx))
        out = out if batch_first else out.transpose(0, 1)
        assert out.layout == layout
        assert out.mask.equal(ROWS[..., None].expand(out.shape))
        assert all(state.mask.all() for state in listed(final))
        found = [out.to_dense().filled(nan)[ROWS], *(state.filled(nan) for state in listed(final))]
        weights = [torch.randn_like(part) for part in found]
        grads = torch.autograd.grad(found, leaves, weights)
    right = alone(module, x, hx)
    torch.testing.assert_close(found, right)
    torch.testing.assert_close(grads, torch.autograd.grad(right, leaves, weights))


@pytest.mark.own_dtype("bfloat16", "float16")
def test_what_grows_without_bound_does_not_do_so_in_the_padding() -> None:
    module = nn.RNN(2, 2, nonlinearity="relu")
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(3.0)
    x = torch.ones(500, 1, 2, requires_grad=True)  # 6 ** 500 is infinite
    out, final = module(mg.masked(x, (torch.arange(500) < 2)[:, None, None]))
    right, end = module(x[:2])
    torch.testing.assert_close((out.filled(0.0)[:2], final.filled(0.0)), (right, end))
    leaves = [x, *module.parameters()]
    found, expected = (torch.autograd.grad(y.sum(), leaves) for y in (out.filled(0.0), right))
    torch.testing.assert_close(found, expected)


def test_gaps_are_refused_with_the_reason() -> None:
    x = torch.randn(3, 1, 4)
    for hole in ((1,), (0,), (2, 0, 1)):
        mask = torch.ones(3, 1, 4).bool()
        mask[hole] = False
        with pytest.raises(mg.UndefinedOnMaskedError, match=r"sequences without gaps.*from_lengths"):
            nn.GRU(4, 3)(mg.masked(x, mask))
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"sequences without gaps"):
        nn.GRU(4, 3, dtype=D)(
            batch(torch.jagged)[1]
        )  # batch_first is absent: the sequences would be the steps


@pytest.mark.own_dtype("bfloat16", "float16")
def test_in_a_graph_what_comes_after_a_gap_is_unspecified_and_rows_stay_rows() -> None:
    module = nn.GRU(4, 3, batch_first=True)
    weights = module._flat_weights
    options = {
        "has_biases": True, "num_layers": 1, "dropout": 0.0, "train": False,
        "bidirectional": False, "batch_first": True,
    }  # fmt: skip

    def run(x: mg.MaskedTensor) -> Any:
        return torch.gru(x, torch.zeros(1, 2, 3), weights, **options)

    x, mask = torch.randn(2, 4, 4), torch.ones(2, 4, 4).bool()
    mask[0, 2, 1] = False
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    out, final = compiled(mg.masked(x, mask))
    assert out.mask[..., 0].tolist() == [[True, True, False, False], [True] * 4]
    assert final.mask[0, :, 0].tolist() == [False, True]
    right, end = module(x)
    torch.testing.assert_close(out.filled(0.0)[:, :2], right[:, :2])
    torch.testing.assert_close(final.filled(0.0)[:, 1], end[:, 1])
    rows = mg.from_lengths(x, torch.tensor([3, 0]), layout=torch.jagged)
    for (out, final), (right, end) in ((compiled(rows), module(rows)), (run(rows), module(rows))):
        assert out.layout == torch.jagged
        torch.testing.assert_close((out.values(), final.filled(nan)), (right.values(), end.filled(nan)))


@on_both_layouts
def test_a_sequence_whose_initial_state_is_unspecified_is_so_itself(layout: torch.layout) -> None:
    module = nn.LSTM(4, 3, batch_first=True, dtype=D)
    (_, m), hx = batch(layout), [state.detach() for state in states(module)]
    known = torch.ones(1, len(LENGTHS), 3).bool()
    known[0, 1, 2] = False
    out, final = module(m, (mg.masked(torch.where(known, hx[0], nan), known), hx[1]))
    assert not out.mask[1].any()
    assert [state.mask[0, :, 0].tolist() for state in final] == [[True, False, True, True]] * 2
    right, ends = module(m, tuple(hx))
    torch.testing.assert_close(out.to_dense().filled(0.0)[3], right.to_dense().filled(0.0)[3])
    again, _ = module(m, ends)  # the states of one batch begin the next
    assert again.mask.equal(right.mask)


def test_masked_weights_and_packing_are_refused() -> None:
    gru = nn.GRU(4, 3, dtype=D)
    weight = mg.masked(gru.weight_ih_l0, torch.rand(9, 4) < 0.5)
    weights = [weight, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0]
    for x in (torch.randn(8, 4, 4, dtype=D), batch(torch.jagged)[1].transpose(0, 1)):
        with pytest.raises(mg.UndefinedOnMaskedError, match="a gate with masked weights"):
            torch.gru(x, torch.zeros(1, 4, 3, dtype=D), weights, True, 1, 0.0, False, False, False)
    with pytest.raises(mg.UndefinedOnMaskedError, match="a gate with masked weights"):
        torch.gru_cell(torch.randn(2, 4).double(), torch.zeros(2, 3).double(), weight, gru.weight_hh_l0)
    with pytest.raises(mg.UndefinedOnMaskedError, match="Pass the padded batch"):
        nn.utils.rnn.pack_padded_sequence(batch(torch.strided)[1], torch.tensor(LENGTHS), batch_first=True)


@pytest.mark.parametrize(
    "cell",
    [nn.RNNCell(4, 3), nn.RNNCell(4, 3, nonlinearity="relu"), nn.LSTMCell(4, 3), nn.GRUCell(4, 3)],
    ids=str,
)
def test_a_cell_leaves_rows_that_are_unspecified_alone(cell: nn.Module) -> None:
    rows = torch.tensor([[True], [False], [True]]).expand(3, 4)
    x = torch.where(rows, torch.randn(3, 4), nan).requires_grad_()
    hx = [torch.randn(3, 3, requires_grad=True) for _ in range(2 if isinstance(cell, nn.LSTMCell) else 1)]
    leaves = [x, *hx, *cell.parameters()]
    found = listed(cell(mg.masked(x, rows), packed(hx)))
    right = listed(cell(x[::2], packed([state[::2] for state in hx])))
    assert all(part.mask.equal(rows[:, :3]) for part in found)
    torch.testing.assert_close([part.filled(0.0)[::2] for part in found], right)
    total, expected = sum(y.sum().square() for y in found), sum(y.sum().square() for y in right)
    torch.testing.assert_close(torch.autograd.grad(total, leaves), torch.autograd.grad(expected, leaves))
    # a loop of cells: what follows an unspecified step is unspecified
    again = listed(cell(torch.randn(3, 4), packed(found)))
    assert all(part.mask.equal(rows[:, :3]) for part in again)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_fully_specified_input_gives_what_torch_gives(kind: str) -> None:
    cls, options = KINDS[kind]
    module, x = cls(4, 3, 2, bidirectional=True, dropout=0.5, **options), torch.randn(5, 1, 4)
    for training in (True, False):
        module.train(training)
        torch.manual_seed(1)
        out, final = module(x)
        rows = mg.from_lengths(x.transpose(0, 1), torch.tensor([5]), layout=torch.jagged).transpose(0, 1)
        for given in (mg.masked(x), rows):
            torch.manual_seed(1)
            found, ends = module(given)
            parts = [found, *listed(ends)]
            assert all(part.mask.all() for part in parts)
            torch.testing.assert_close([part.filled(0.0) for part in parts], [out, *listed(final)])
