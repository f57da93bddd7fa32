"""skorch: data is converted to plain tensors."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "skorch",
    without="raises",
    patches=(
        *refusals(
            "skorch.utils:to_tensor",
            "skorch converts arrays and plain tensors",
            "Give the net plain tensors, and mask them in the module, mg.masked(x, x != padding), and in get_loss, "
            "mg.masked(y, y != -100); or write net.module_(x) for a prediction.",
            "test_skorch.py::test_masked_tensors_refuse",
        ),
    ),
)
