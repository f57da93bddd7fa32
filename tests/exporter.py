"""PyTorch's exporter to ONNX reads the bodies of all operators anew for each file: half a second, spared in tests."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["one_registry"]


@contextmanager
def one_registry() -> Iterator[None]:
    """Read them once; each file has its own copy."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = ONNXRegistry.from_torchlib

    @functools.cache
    def once(opset_version: int) -> ONNXRegistry:
        return read(opset_version=opset_version)

    def copied(cls: type[ONNXRegistry], opset_version: int = 18) -> ONNXRegistry:
        registry = cls()
        registry._opset_version = opset_version
        registry.functions = {key: list(bodies) for key, bodies in once(opset_version).functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(copied))
        yield
