"""tensordict: values that are not tensors are stored as objects."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "tensordict",
    without="keeps an object",
    patches=(
        *refusals(
            ".base:TensorDictBase._convert_to_tensor ._td:TensorDict.where :NonTensorData.__init__",
            "it would be kept as an object of Python, which indexing, stacking and moving leave as it is",
            "Store its parts, TensorDict(mg.interop.to_tensors({'x': x}), batch_size=…), and read "
            "mg.interop.from_tensors(td).",
            "test_tensordict.py::test_masked_tensors_refuse",
            "tensordict",
        ),
    ),
)
