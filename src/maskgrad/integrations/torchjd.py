"""torchjd: every entry is an objective."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "torchjd",
    without="wrong in silence",
    patches=(
        *refusals(
            "_backward:backward _jac:jac",
            "each entry is an objective, and unspecified ones would count as objectives with a gradient of zero",
            "Pass the specified ones, losses.compressed().",
            "test_torchjd.py::test_masked_objectives_refuse",
            "torchjd.autojac.",
        ),
    ),
)
