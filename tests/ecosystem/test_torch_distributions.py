"""torch.distributions, which need no other package: rows of the table; the tests proper are among the unit tests."""

from __future__ import annotations

import torch
from torch import distributions as D

from tests.ecosystem.truth import assert_refused, garbage


def test_parameters_and_values() -> None:
    x, values, mask = garbage(5, 3)
    found = D.Normal(x, 1.0).log_prob(torch.zeros(3))
    assert torch.equal(found.mask, mask)
    torch.testing.assert_close(found.compressed(), D.Normal(values, 1.0).log_prob(torch.zeros(3))[mask])
    assert_refused(r"parameters\[rows\]", lambda: D.Beta(x, 1.0))
    assert_refused(
        "fully specified or fully unspecified",
        lambda: D.Dirichlet(torch.ones(3)).log_prob(x),
        lambda: D.MultivariateNormal(torch.zeros(3), torch.eye(3)).log_prob(x),
    )
    assert_refused(r"x\.filled\(0\.\)", lambda: D.Gamma(1.0, 1.0).log_prob(x))
