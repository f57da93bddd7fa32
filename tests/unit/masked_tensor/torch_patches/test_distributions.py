"""torch.distributions with validation: unspecified values and parameters, against the entries that are specified."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributions as D

import maskgrad as mg
from maskgrad.errors import UndefinedOnMaskedError, UnsupportedOperationError
from tests.poison import nan, poisoned


@pytest.fixture(autouse=True)
def validation() -> Any:
    """Dynamo switches it off for the whole process when it is imported."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


VALUES = torch.tensor([[0.5, 2.0, 1.0], [3.0, 0.25, 1.5]])
MASK = torch.tensor([[True, False, True], [False, False, True]])
BAD = torch.tensor([[0.0, nan, 0.0], [-1e38, torch.inf, 0.0]])


def masked() -> mg.MaskedTensor:
    return mg.masked(torch.where(MASK, VALUES, BAD), MASK)


@pytest.mark.every
@pytest.mark.parametrize(
    "make",
    [lambda x: D.Normal(x, 1.0), D.Exponential, D.Poisson, lambda x: D.Uniform(0.0, x + 3)],
    ids=lambda make: type(make(VALUES)).__name__,
)
def test_log_probabilities_are_specified_where_the_parameters_are(make: Any) -> None:
    """Of masked parameters, and of masked values."""
    found = make(masked()).log_prob(torch.tensor(2.0))
    assert torch.equal(found.mask, MASK)
    torch.testing.assert_close(found.compressed(), make(VALUES).log_prob(torch.tensor(2.0))[MASK])
    one = make(torch.tensor(1.0))
    whole = torch.floor(VALUES) if isinstance(one, D.Poisson) else VALUES
    found = one.log_prob(mg.masked(torch.where(MASK, whole, BAD), MASK))
    assert torch.equal(found.mask, MASK)
    torch.testing.assert_close(found.compressed(), one.log_prob(whole)[MASK])


def test_categories_are_those_that_are_specified() -> None:
    found = D.Categorical(logits=masked()).log_prob(torch.tensor([2, 2]))
    expected = D.Categorical(logits=VALUES[0, [0, 2]]).log_prob(torch.tensor(1))
    torch.testing.assert_close(found.filled(), torch.stack([expected, torch.tensor(0.0)]))
    labels = mg.masked(torch.tensor([1, 99]), torch.tensor([True, False]))
    assert D.Categorical(logits=torch.zeros(3)).log_prob(labels).mask.tolist() == [True, False]


def test_what_is_specified_must_lie_in_the_support() -> None:
    assert D.Bernoulli(0.5).log_prob(poisoned([0.0, 1.0, None])).mask.tolist() == [True, True, False]
    with pytest.raises(
        ValueError, match=r"specified entries of value must lie in the support of Bernoulli.*3\., --"
    ):
        D.Bernoulli(0.5).log_prob(poisoned([0.0, 3.0, None]))
    with pytest.raises(ValueError, match="parameter scale"):
        D.Normal(0.0, poisoned([1.0, -1.0, None]))
    with pytest.raises(RuntimeError, match="must match the size"):
        D.Normal(torch.zeros(2), 1.0).log_prob(poisoned([0.0, 3.0, None]))
    with pytest.raises(ValueError, match=r"event shape of Dirichlet, \(2,\), found a value of shape \(3,\)"):
        D.Dirichlet(torch.ones(2)).log_prob(poisoned([0.0, 3.0, None]))
    unchecked = D.Normal(0.0, 1.0, validate_args=False).log_prob(poisoned([0.0, None]))
    assert unchecked.mask.tolist() == [True, False]


def test_densities_of_several_entries_together() -> None:
    whole = mg.masked(torch.tensor([[0.25, 0.75], [nan, nan]]), torch.tensor([[True], [False]]))
    dirichlet = D.Dirichlet(torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(
        dirichlet.log_prob(whole)[0].filled(), dirichlet.log_prob(torch.tensor([0.25, 0.75]))
    )
    part = mg.masked(torch.tensor([[0.25, 0.75]]), torch.tensor([[True, False]]))
    with pytest.raises(
        UnsupportedOperationError, match=r"Dirichlet\.log_prob .* fully specified or fully unspecified"
    ):
        dirichlet.log_prob(part)


@pytest.mark.every
@pytest.mark.parametrize("make", [lambda x: D.Beta(x, 1.0), D.Dirichlet, lambda x: D.Multinomial(3, x)])
def test_parameters_that_belong_together_are_refused(make: Any) -> None:
    with pytest.raises(UnsupportedOperationError, match=r"form one vector.*parameters\[rows\]"):
        make(masked())


def test_gamma_refuses_masked_values() -> None:
    """Its code makes a tensor of the value, ``torch.as_tensor``, of which nobody asks us."""
    with pytest.raises(UndefinedOnMaskedError, match=r"x\.filled\(0\.\)"):
        D.Gamma(2.0, 1.0).log_prob(masked())
