"""torchjd: Jacobians of several objectives; masked inputs inside, plain objectives outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchjd.aggregation import Mean, UPGrad
from torchjd.autojac import backward, jac_to_grad

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.rows import one_line, refused, works
from tests.ecosystem.truth import garbage


@works("torchjd", "`backward` with losses that are means of masked tensors")
@pytest.mark.parametrize("aggregator", [Mean(), UPGrad()], ids=["Mean", "UPGrad"])
def test_means_as_objectives(aggregator: nn.Module) -> None:
    x, values, mask = garbage(5, 3)
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    out = model(x)
    backward([out[:, 0].mean(), out[:, 1].square().mean()])
    jac_to_grad(model.parameters(), aggregator)
    rows = mask.any(1)
    plain = twin(values[rows])  # contractions sum over what is specified
    backward([plain[:, 0].mean(), plain[:, 1].square().mean()])
    jac_to_grad(twin.parameters(), aggregator)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@one_line("torchjd", "one objective for each specified entry", "`backward(losses.compressed())`")
def test_specified_entries_as_objectives() -> None:
    _, values, _ = garbage(5, 3)
    labels, _, known = garbage(5)
    known[1] = False
    model, twin = nn.Linear(3, 1), nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    losses = (model(values)[:, 0] - mg.masked(labels.filled(0.0), known)).square()
    backward(losses.compressed())
    jac_to_grad(model.parameters(), Mean())
    backward((twin(values[known])[:, 0] - labels.filled(0.0)[known]).square())
    jac_to_grad(twin.parameters(), Mean())
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@refused("torchjd", "a MaskedTensor of objectives", "`losses.compressed()`")
def test_masked_objectives_refuse() -> None:
    x, _, _ = garbage(5, 3)
    out = nn.Linear(3, 1)(x)
    for given in (out[:, 0], [out[:, 0]]):
        with pytest.raises(UnsupportedOperationError, match=r"losses\.compressed\(\)"):
            backward(given)
