"""einops rearranges, repeats and reduces MaskedTensors as it does tensors: with the methods that both have."""

from __future__ import annotations

from typing import Any

from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["install"]


def install() -> None:
    """Define a backend: einops finds all classes derived from its own."""
    from einops import _backends

    class MaskedBackend(_backends.TorchBackend):  # type: ignore[misc]
        framework_name = "maskgrad"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, MaskedTensor)

        def from_numpy(self, x: Any) -> Any:
            raise NotImplementedError("numpy's arrays have no pattern; use mg.from_numpy")

        def to_numpy(self, x: Any) -> Any:
            return x.to_numpy()

    # einops keeps the classes in a list of weak references, for as long as somebody else has them
    _KEPT.append(MaskedBackend)


_KEPT: list[type] = []
