"""timm: its accuracy divides by the number of all samples."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "timm",
    without="wrong in silence",
    patches=(
        *refusals(
            "timm.utils.metrics:accuracy",
            "it divides by the number of all samples",
            "Write accuracy(*mg.align(output, target)).",
            "test_timm.py::test_accuracy_refuses",
        ),
    ),
)
