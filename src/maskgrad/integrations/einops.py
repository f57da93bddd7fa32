"""einops: a backend for MaskedTensors in its registry."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration
from maskgrad.masked_tensor.other_packages import register_einops
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["INTEGRATION"]

INTEGRATION = Integration(
    "einops",
    without="raises",
    patches=(
        Patch(
            target="einops._backends.AbstractBackend",
            reason="einops does not support MaskedTensors until one is created after einops was imported",
            without="einops refuses MaskedTensors; use x.reshape, x.permute and reductions along dimensions",
            test="tests/ecosystem/test_einops.py::test_rearranging",
            needs={
                "einops._backends.AbstractBackend": None,
                "einops._backends.TorchBackend.is_appropriate_type": "self tensor",
            },
            install=register_einops,
            after="einops._backends",
        ),
    ),
)
