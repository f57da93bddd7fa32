"""TensorBoard: summaries of arrays."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "tensorboard",
    without="raises",
    patches=(
        *refusals(
            "torch.utils.tensorboard._convert_np:make_np",
            "a summary has no place for what is unspecified",
            "Write a number, x.mean(), the specified entries, x.compressed(), or x.filled(value).",
            "test_tensorboard.py::test_masked_tensors_refuse",
        ),
    ),
)
