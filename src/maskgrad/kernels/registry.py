"""Every kernel, family by family; each becomes an operator of ``torch.library`` when the package is imported.

Each has a compiled body for the CPU, one for CUDA devices where ``cuda/`` has its family, the reference elsewhere, a
fake body, and perhaps a derivative written with other kernels. A family is a module of this package: its records, the
functions that choose a body, and the derivatives.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from maskgrad.kernels import (
    batch_normalization,
    coalescing,
    cross_entropy,
    extrema,
    filling,
    lookup,
    losses,
    moments,
    normalization,
    norms,
    prod,
    reductions,
    segment_exponentials,
    segment_moments,
    segment_norms,
    segment_products,
    segments,
    softmax,
    updates,
)
from maskgrad.kernels.kernel import Kernel
from maskgrad.kernels.selection import KERNELS, cuda_families, triton_works

__all__ = ["FAMILIES", "register"]

FAMILIES = (
    reductions,
    prod,
    moments,
    norms,
    normalization,
    batch_normalization,
    extrema,
    filling,
    lookup,
    losses,
    cross_entropy,
    coalescing,
    segments,
    segment_moments,
    segment_norms,
    segment_products,
    segment_exponentials,
    softmax,
    updates,
)


def register() -> None:
    """Define every operator, once; the package does so when it is imported."""
    for family in FAMILIES:
        for kernel in family.KERNELS:
            KERNELS[kernel.name] = kernel
            _define(kernel)


def _define(kernel: Kernel) -> None:
    qualified = f"maskgrad::{kernel.name}"
    reference = getattr(importlib.import_module(f"maskgrad.kernels.reference.{kernel.family}"), kernel.name)
    torch.library.define(qualified, kernel.schema)
    torch.library.impl(qualified, "default", reference)
    torch.library.impl(qualified, "cpu", _compiled_body(kernel, "cpu", reference))
    if kernel.family in cuda_families():
        torch.library.impl(qualified, "cuda", _compiled_body(kernel, "cuda", reference))
    nothing = kernel.schema.endswith("-> ()")
    torch.library.register_fake(qualified, _writes_only if nothing else kernel.fake or reference)
    if kernel.backward is not None:
        torch.library.register_autograd(qualified, kernel.backward, setup_context=kernel.save)


def _writes_only(*_: Any, **__: Any) -> None:
    """The fake body of an operator that returns nothing."""


def _compiled_body(kernel: Kernel, device: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled body as PyTorch calls it, perhaps directly, on what only the reference knows."""
    arguments = torch._C.parse_schema(f"{kernel.name}{kernel.schema}").arguments
    written = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]

    def body(*args: Any, **kwargs: Any) -> Any:
        if args[kernel.leading].dtype not in kernel.dtypes or (device == "cuda" and not triton_works()):
            return reference(*args, **kwargs)
        module = importlib.import_module(f"maskgrad.kernels.{device}.{kernel.family}")
        result = getattr(module, kernel.name)(*args, **kwargs)
        # PyTorch does not see what numpy arrays or Triton write, and must: saved tensors may be among it.
        for i, name in written:
            tensors = args[i] if i < len(args) else kwargs.get(name)
            if tensors is not None:
                torch.autograd.graph.increment_version(tensors if isinstance(tensors, list) else [tensors])
        return result

    return body
