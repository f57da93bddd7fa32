"""What results and speed depend on: versions, kernels, what is patched inside PyTorch, devices, threads."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from typing import Any

import torch

import maskgrad
from maskgrad.kernels import kernels_in_use
from maskgrad.kernels.cpu import threads
from maskgrad.masked_tensor.torch_patches.table import PATCHES
from maskgrad.versions import OPTIONAL

__all__ = ["environment"]

_COMPUTING = {
    "torch": "torch",
    "numpy": "numpy",
    "numba": "numba",
    "llvmlite": "llvmlite",
    "triton": "triton",
}


def environment() -> dict[str, Any]:
    """Everything, as plain data; imports Dynamo and the compiler of the kernels to find out."""
    return {
        "versions": _versions(),
        "kernels": _kernels(),
        "patches": _patches(),
        "devices": _devices(),
        "threads": _threads(),
    }


def _versions() -> dict[str, str | None]:
    """By distribution; None for what is not installed. PyTorch says more of its build than its distribution does."""
    found: dict[str, str | None] = {"maskgrad": maskgrad.__version__, "python": platform.python_version()}
    names = _COMPUTING | {name: package.distribution or name for name, package in OPTIONAL.items()}
    found |= {distribution: _version(distribution) for distribution in names.values()}
    return found | {"torch": str(torch.__version__)}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernels() -> dict[str, dict[str, str]]:
    """By device, which body of each kernel runs for a large tensor."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {device: kernels_in_use(device) for device in devices}


def _patches() -> list[dict[str, str]]:
    importlib.import_module("torch._dynamo")  # what waits for it is then applied
    return [
        {
            "target": patch.target,
            "how": patch.how,
            "state": patch.state,
            "reason": patch.reason,
            "without": patch.without,
            "versions": patch.versions,
            "test": patch.test,
        }
        for patch in PATCHES
    ]


def _devices() -> list[str]:
    found = [f"cpu: {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"]
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        memory = f"{facts.total_memory / 2**30:.0f} GiB"
        found.append(f"cuda:{i}: {facts.name}, compute capability {facts.major}.{facts.minor}, {memory}")
    return found


def _threads() -> dict[str, Any]:
    """Of PyTorch's pool, which our loops use too, and of who says how many there are."""
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cores of the machine": os.cpu_count(),
        "cores this process may use": may_use,
        "threads of PyTorch": torch.get_num_threads(),
        "threads between operations": torch.get_num_interop_threads(),
        "compiled kernels run on": threads.pool(),
        "environment": {
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "MASKGRAD_KERNELS")
            if name in os.environ
        },
        "platform": sys.platform,
    }
