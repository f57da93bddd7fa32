"""torch.distributions, which need no other package: rows of the table; the tests proper are among the unit tests."""

from __future__ import annotations

import pytest
import torch
from torch import distributions as D

from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.rows import refused, works
from tests.ecosystem.truth import garbage


@works(
    "torch.distributions",
    "masked parameters and values, with validation: `Normal`, `Categorical`, `Bernoulli`, `Independent`, …",
)
def test_parameters_and_values() -> None:
    x, values, mask = garbage(5, 3)
    found = D.Normal(x, 1.0).log_prob(torch.zeros(3))
    assert torch.equal(found.mask, mask)
    torch.testing.assert_close(found.compressed(), D.Normal(values, 1.0).log_prob(torch.zeros(3))[mask])
    logits = D.Categorical(logits=x)
    for row, some, entropy in zip(values, mask, logits.entropy(), strict=True):
        if some.any():
            torch.testing.assert_close(entropy.filled(), D.Categorical(logits=row[some]).entropy())
    assert D.Normal(0.0, 1.0).log_prob(x).mask.equal(mask)


@refused(
    "torch.distributions",
    "`Beta`, `Dirichlet`, `Multinomial` of masked parameters",
    "`parameters[rows]`, `x.filled(value)`",
)
@refused(
    "torch.distributions",
    "a joint density of a partly specified value",
    "values that are fully specified or fully unspecified",
)
@refused("torch.distributions", "`Gamma.log_prob(x)`, `MultivariateNormal.log_prob(x)`", "`x.filled(0.)`")
def test_refusals() -> None:
    x, _, _ = garbage(5, 3)
    with pytest.raises(UnsupportedOperationError, match=r"parameters\[rows\]"):
        D.Beta(x, 1.0)
    for distribution in (D.Dirichlet(torch.ones(3)), D.MultivariateNormal(torch.zeros(3), torch.eye(3))):
        with pytest.raises(UnsupportedOperationError, match="fully specified or fully unspecified"):
            distribution.log_prob(x)
    with pytest.raises(TypeError, match=r"x\.filled\(0\.\)"):
        D.Gamma(1.0, 1.0).log_prob(x)
