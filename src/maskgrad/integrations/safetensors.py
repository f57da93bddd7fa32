"""safetensors: files of plain tensors."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "safetensors",
    without="raises",
    patches=(
        *refusals(
            "safetensors.torch:save_file safetensors.torch:save",
            "a file holds plain tensors",
            "Save mg.interop.to_tensors(tensors), and read mg.interop.from_tensors(load_file(path)).",
            "test_safetensors.py::test_masked_tensors_refuse",
        ),
    ),
)
