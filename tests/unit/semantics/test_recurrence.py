"""Recurrent modules, unmodified: every sequence of a padded batch as if it were alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan

D = torch.float64
LENGTHS = [5, 2, 0, 7]
STEPS = 7
KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "LSTM": (nn.LSTM, {}),
    "LSTM with projection": (nn.LSTM, {"proj_size": 2}),
    "GRU": (nn.GRU, {}),
}


def batch(width: int = 4, dtype: torch.dtype = D) -> tuple[Tensor, Tensor]:
    """A leaf with garbage in its padding, and the mask: (N, T, width)."""
    clean = torch.randn(len(LENGTHS), STEPS, width, dtype=dtype)
    mask = (torch.arange(STEPS) < torch.tensor(LENGTHS)[:, None])[..., None].expand(clean.shape)
    garbage = torch.tensor([nan, inf, -inf, 1e38]).to(dtype).repeat(clean.numel() // 4)
    return torch.where(mask, clean, garbage.reshape(clean.shape)).requires_grad_(), mask


def states(module: Any, size: int) -> list[Tensor]:
    runs = module.num_layers * (2 if module.bidirectional else 1)
    widths = [module.proj_size or module.hidden_size]
    if isinstance(module, nn.LSTM):
        widths.append(module.hidden_size)
    return [torch.randn(runs, size, width, dtype=D, requires_grad=True) for width in widths]


def packed(parts: Any) -> Any:
    return tuple(parts) if len(parts) == 2 else parts[0]


def listed(parts: Any) -> list[Any]:
    return list(parts) if isinstance(parts, tuple) else [parts]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "both", "batch_first"), list(itertools.product((1, 2), (False, True), (False, True)))
)
def test_every_sequence_as_if_it_were_alone(kind: str, layers: int, both: bool, batch_first: bool) -> None:
    cls, options = KINDS[kind]
    module = cls(4, 3, layers, bidirectional=both, batch_first=batch_first, dtype=D, bias=both, **options)
    x, mask = batch()
    hx = states(module, len(LENGTHS))
    m = mg.masked(x, mask)
    with torch.autograd.set_detect_anomaly(True):
        out, final = module(m if batch_first else m.transpose(0, 1), packed(hx))
        out, final = out if batch_first else out.transpose(0, 1), listed(final)
        assert out.mask.equal(mask[..., :1].expand(out.shape))
        assert all(state.mask.all() for state in final)
        weights = [torch.randn(part.shape, dtype=D) for part in (out, *final)]
        total = sum((p.filled(0.0) * w).sum() for p, w in zip((out, *final), weights, strict=True))
        leaves = [x, *hx, *module.parameters()]
        found = torch.autograd.grad(total, leaves)
    right: Any = 0
    for i, length in enumerate(LENGTHS):
        begin = [state[:, i : i + 1] for state in hx]
        ends = begin
        if length:
            alone = x[i : i + 1, :length]
            its, ends = module(alone if batch_first else alone.transpose(0, 1), packed(begin))
            its, ends = its if batch_first else its.transpose(0, 1), listed(ends)
            torch.testing.assert_close(out.filled(0.0)[i, :length], its[0])
            right = right + (its[0] * weights[0][i, :length]).sum()
        for state, end, weight in zip(final, ends, weights[1:], strict=True):
            torch.testing.assert_close(state.filled(0.0)[:, i : i + 1], end)
            right = right + (end * weight[:, i : i + 1]).sum()
    for grad, expected in zip(found, torch.autograd.grad(right, leaves), strict=True):
        torch.testing.assert_close(grad, expected)


def test_what_grows_without_bound_does_not_do_so_in_the_padding() -> None:
    module = nn.RNN(2, 2, nonlinearity="relu")
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(3.0)
    x = torch.ones(500, 1, 2, requires_grad=True)  # 6 ** 500 is infinite
    out, final = module(mg.masked(x, (torch.arange(500) < 2)[:, None, None]))
    right, end = module(x[:2])
    torch.testing.assert_close(out.filled(0.0)[:2], right)
    torch.testing.assert_close(final.filled(0.0), end)
    found = torch.autograd.grad(out.filled(0.0).sum(), [x, *module.parameters()])
    for grad, expected in zip(
        found, torch.autograd.grad(right.sum(), [x, *module.parameters()]), strict=True
    ):
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_without_a_batch_is_itself_without_its_padding(kind: str) -> None:
    cls, options = KINDS[kind]
    module = cls(4, 3, dtype=D, **options)
    x, mask = batch()
    out, final = module(mg.masked(x[1], mask[1]))
    right, ends = module(x[1, :2])
    assert out.shape == (STEPS, right.shape[-1])
    torch.testing.assert_close(out.filled(0.0)[:2], right)
    for end, state in zip(listed(final), listed(ends), strict=True):
        torch.testing.assert_close(end.filled(0.0), state)


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_are_refused_with_the_reason(kind: str) -> None:
    cls, options = KINDS[kind]
    x = torch.randn(3, 1, 4)
    for hole in ((1,), (0,), (2, 0, 1)):
        mask = torch.ones(3, 1, 4).bool()
        mask[hole] = False
        with pytest.raises(mg.UndefinedOnMaskedError, match=r"sequences without gaps.*from_lengths"):
            cls(4, 3, **options)(mg.masked(x, mask))


def test_what_comes_after_a_gap_is_unspecified_where_nobody_may_look() -> None:
    module = nn.GRU(4, 3)
    x, mask = torch.randn(4, 2, 4), torch.ones(4, 2, 4).bool()
    mask[2, 0, 1] = False

    weights = [module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0]

    def run(x: mg.MaskedTensor) -> Any:
        return torch.gru(x, torch.zeros(1, 2, 3), weights, True, 1, 0.0, False, False, False)

    out, final = torch.compile(run, fullgraph=True, backend="aot_eager")(mg.masked(x, mask))
    assert out.mask[:, :, 0].tolist() == [[True, True], [True, True], [False, True], [False, True]]
    assert final.mask[0, :, 0].tolist() == [False, True]
    right, end = module(x)
    torch.testing.assert_close(out.filled(0.0)[:2], right[:2])
    torch.testing.assert_close(final.filled(0.0)[:, 1], end[:, 1])


def test_a_sequence_whose_initial_state_is_unspecified_is_so_itself() -> None:
    module = nn.LSTM(4, 3, dtype=D)
    x, mask = batch()
    m = mg.masked(x, mask).transpose(0, 1)
    hx = [state.detach() for state in states(module, len(LENGTHS))]
    known = torch.ones(1, len(LENGTHS), 3).bool()
    known[0, 1, 2] = False
    out, final = module(m, (mg.masked(torch.where(known, hx[0], nan), known), hx[1]))
    assert not out.mask[:, 1].any()
    assert [state.mask[0, :, 0].tolist() for state in final] == [[True, False, True, True]] * 2
    right, _ = module(m, tuple(hx))
    torch.testing.assert_close(out.filled(0.0)[:, 3], right.filled(0.0)[:, 3])
    again, _ = module(m, module(m)[1])  # the states of one batch begin the next
    assert again.mask.equal(right.mask)


def test_masked_weights_are_refused() -> None:
    gru = nn.GRU(4, 3)
    weight = mg.masked(gru.weight_ih_l0, torch.rand(9, 4) < 0.5)
    with pytest.raises(mg.UndefinedOnMaskedError, match="a gate with masked weights"):
        torch.gru(
            torch.randn(2, 1, 4), torch.zeros(1, 1, 3),
            [weight, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0], True, 1, 0.0, False, False, False,
        )  # fmt: skip
    with pytest.raises(mg.UndefinedOnMaskedError, match="a gate with masked weights"):
        torch.gru_cell(torch.randn(2, 4), torch.zeros(2, 3), weight, gru.weight_hh_l0)


def test_packing_is_refused_with_a_remedy() -> None:
    x = mg.from_lengths(torch.randn(2, 3, 4), torch.tensor([3, 2]), dim=1)
    with pytest.raises(mg.UndefinedOnMaskedError, match="Pass the padded batch"):
        nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)


CELLS = [nn.RNNCell(4, 3), nn.RNNCell(4, 3, nonlinearity="relu"), nn.LSTMCell(4, 3), nn.GRUCell(4, 3)]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
def test_a_cell_leaves_rows_that_are_unspecified_alone(which: int, garbage: float) -> None:
    cell = CELLS[which]
    rows = torch.tensor([[True], [False], [True]]).expand(3, 4)
    x = torch.where(rows, torch.randn(3, 4), garbage).requires_grad_()
    hx = [torch.randn(3, 3, requires_grad=True) for _ in range(2 if isinstance(cell, nn.LSTMCell) else 1)]
    found = listed(cell(mg.masked(x, rows), packed(hx)))
    right = listed(cell(x[::2], packed([state[::2] for state in hx])))
    total = sum(part.filled(0.0).square().sum() for part in found)
    grads = torch.autograd.grad(total, [x, *hx, *cell.parameters()])
    wanted = torch.autograd.grad(sum(part.square().sum() for part in right), [x, *hx, *cell.parameters()])
    for part, its in zip(found, right, strict=True):
        assert part.mask.equal(rows[:, :3])
        torch.testing.assert_close(part.filled(0.0)[::2], its)
    for grad, expected in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, expected)
    # a loop of cells: what follows an unspecified step is unspecified
    again = listed(cell(torch.randn(3, 4), packed(found)))
    assert all(part.mask.equal(rows[:, :3]) for part in again)


def test_a_state_goes_on_entry_by_entry() -> None:
    cell, known = nn.GRUCell(4, 3), torch.tensor([[True, False, True]])
    out = cell(torch.randn(1, 4), mg.masked(torch.full((1, 3), nan).masked_fill(known, 1.0), known))
    assert out.mask.equal(known)


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_fully_specified_input_gives_what_torch_gives(kind: str) -> None:
    cls, options = KINDS[kind]
    module = cls(4, 3, 2, bidirectional=True, dropout=0.5, **options)
    x = torch.randn(5, 2, 4)
    for training in (True, False):
        module.train(training)
        torch.manual_seed(1)
        out, final = module(x)
        torch.manual_seed(1)
        found, ends = module(mg.masked(x, torch.ones_like(x).bool()))
        assert isinstance(ends, tuple) == isinstance(final, tuple)
        assert found.mask.all()
        torch.testing.assert_close(found.filled(0.0), out)
        for end, state in zip(listed(ends), listed(final), strict=True):
            assert end.mask.all()
            torch.testing.assert_close(end.filled(0.0), state)
