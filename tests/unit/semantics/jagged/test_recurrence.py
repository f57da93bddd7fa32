"""Recurrent modules, unmodified, on sequences one behind the other: each as if it were alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

import maskgrad as mg
from tests.poison import inf, nan
from tests.unit.semantics.test_recurrence import KINDS, D, listed, packed, states


def batch(lengths: list[int], width: int = 4, dtype: torch.dtype = D) -> tuple[Tensor, mg.MaskedTensor]:
    """Rows that require a gradient, and sequences of them in a frame with a step more than the longest has."""
    rows = torch.randn(sum(lengths), width, dtype=dtype, requires_grad=True)
    return rows, mg.from_offsets(rows, torch.tensor([0, *lengths]).cumsum(0), max(lengths) + 1)


def alone(module: Any, rows: Tensor, lengths: list[int], hx: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The oracle: rows and final states of a loop over the sequences."""
    outputs, finals = [], []
    for i, part in enumerate(rows.split(lengths)):
        begin = [state[:, i : i + 1].contiguous() for state in hx]
        if len(part):
            batched = part.unsqueeze(0 if module.batch_first else 1)
            output, ends = module(batched, packed(begin))
            outputs.append(output.squeeze(0 if module.batch_first else 1))
            begin = listed(ends)
        finals.append(begin)
    return torch.cat(outputs), [torch.cat(parts, 1) for parts in zip(*finals, strict=True)]


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "both", "batch_first"), list(itertools.product((1, 2), (False, True), (False, True)))
)
def test_every_sequence_as_if_it_were_alone(kind: str, layers: int, both: bool, batch_first: bool) -> None:
    cls, options = KINDS[kind]
    module = cls(4, 3, layers, bidirectional=both, batch_first=batch_first, dtype=D, bias=both, **options)
    lengths = [5, 2, 0, 7, 2, 0, 6]
    rows, x = batch(lengths)
    hx = states(module, len(lengths))
    x = x if batch_first else x.transpose(0, 1)
    with torch.autograd.set_detect_anomaly(True):
        out, final = module(x, packed(hx))
        final = listed(final)
        assert out.layout == torch.jagged
        assert out.offsets() is x.offsets()
        assert all(state.mask.all() for state in final)
        weights = [torch.randn_like(part) for part in (out.values(), *(f.filled(nan) for f in final))]
        found_parts = [out.values(), *(state.filled(nan) for state in final)]
        total = sum((part * weight).sum() for part, weight in zip(found_parts, weights, strict=True))
        leaves = [rows, *hx, *module.parameters()]
        found = torch.autograd.grad(total, leaves)
    its, ends = alone(module, rows, lengths, hx)
    right_parts = [its, *ends]
    for part, expected in zip(found_parts, right_parts, strict=True):
        torch.testing.assert_close(part, expected)
    right = sum((part * weight).sum() for part, weight in zip(right_parts, weights, strict=True))
    for grad, expected in zip(found, torch.autograd.grad(right, leaves), strict=True):
        torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("garbage", [nan, inf, -inf, 1e38])
def test_no_sequence_hears_of_another(garbage: float) -> None:
    module = nn.LSTM(2, 3, 2, bidirectional=True, batch_first=True)
    rows, x = batch([3, 4, 1], 2, torch.float32)
    right, (h, c) = module(x)
    with torch.no_grad():
        rows[3:7] = garbage
    found, (h2, c2) = module(x)
    for one, other in ((found[::2], right[::2]), (h2[:, ::2], h[:, ::2]), (c2[:, ::2], c[:, ::2])):
        torch.testing.assert_close(one.to_dense().filled(0.0), other.to_dense().filled(0.0))
    (grad,) = torch.autograd.grad(found[::2].sum(), rows)
    assert grad[[0, 1, 2, 7]].isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_dropout_between_layers_keeps_rows_apart(training: bool) -> None:
    rows, x = batch([3, 0, 2])
    for p in (0.0, 0.999999):
        module = nn.GRU(4, 3, 2, dropout=p, batch_first=True, dtype=D).train(training)
        out, _ = module(x)
        if p and training:  # nothing reaches the second layer
            module.train(False)
            rows = torch.zeros(5, 3, dtype=D)
            top = nn.GRU(3, 3, batch_first=True, dtype=D)
            top.load_state_dict(
                {k.replace("l1", "l0"): v for k, v in module.state_dict().items() if "l1" in k}
            )
            right = top(mg.from_offsets(rows, torch.tensor([0, 3, 3, 5])))[0]
        else:
            right = module(x.to_dense())[0].to_jagged()
        torch.testing.assert_close(out.values(), right.values())


def test_in_a_graph_rows_are_those_without_one() -> None:
    module = nn.GRU(4, 3, batch_first=True, dtype=D)
    _, x = batch([3, 0, 2])
    weights = [module.weight_ih_l0, module.weight_hh_l0, module.bias_ih_l0, module.bias_hh_l0]

    def run(x: mg.MaskedTensor) -> Any:
        return torch.gru(x, torch.zeros(1, 3, 3, dtype=D), weights, True, 1, 0.0, False, False, True)

    right, end = run(x)
    out, final = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    assert out.layout == right.layout == torch.jagged
    torch.testing.assert_close(out.values(), right.values())
    torch.testing.assert_close(final.filled(nan), end.filled(nan))


def test_masked_initial_states_and_weights() -> None:
    module = nn.LSTM(4, 3, batch_first=True, dtype=D)
    _, x = batch([3, 0, 2])
    hx = [state.detach() for state in states(module, 3)]
    known = torch.ones(1, 3, 3).bool()
    known[0, 2, 1] = False
    first = mg.masked(torch.where(known, hx[0], nan), known)
    found = module(x, (first, hx[1]))
    right = module(x.to_dense(), (first, hx[1]))
    for one, other in zip((found[0], *found[1]), (right[0], *right[1]), strict=True):
        assert one.mask.equal(other.mask)
        torch.testing.assert_close(one.filled(0.0), other.filled(0.0))
    gru = nn.GRU(4, 3, dtype=D)
    weights = [mg.masked(gru.weight_ih_l0, torch.rand(9, 4) < 0.5), gru.weight_hh_l0]
    with pytest.raises(mg.UndefinedOnMaskedError, match="a gate with masked weights"):
        torch.gru(x, torch.zeros(1, 3, 3, dtype=D), weights, False, 1, 0.0, False, False, True)


def test_the_ragged_dimension_must_be_that_of_the_steps() -> None:
    _, x = batch([3, 0, 2])
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"sequences without gaps"):
        nn.GRU(4, 3, dtype=D)(x)  # batch_first is absent: the sequences would be the steps


def test_options_may_be_named() -> None:
    """As the modules do it all arguments are positional."""
    gru = nn.GRU(4, 3, batch_first=True, dtype=D)
    _, x = batch([2, 0, 3])
    begin = torch.zeros(1, 3, 3, dtype=D)
    options = {
        "has_biases": True, "num_layers": 1, "dropout": 0.0, "train": False,
        "bidirectional": False, "batch_first": True,
    }  # fmt: skip
    found, _ = torch.gru(x, begin, gru._flat_weights, **options)
    assert found.layout == torch.jagged
    assert torch.equal(found, gru(x)[0])
