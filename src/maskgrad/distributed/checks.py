"""Checks that optimizers, their options, and parameters (bit for bit) are the same on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from maskgrad.distributed.agreement import Postponed, check_consistent, shown
from maskgrad.distributed.all_reduction import is_distributed_tensor
from maskgrad.distributed.process_group import ProcessGroup, as_bytes
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["check_optimizer", "check_parameters"]


def check_optimizer(optimizer: Optimizer, group: Any = None, *, state: bool = True) -> None:
    """Raise on all ranks if their optimizers differ: class, options, parameters and, optionally, states.

    Ranks with different learning rates drift apart silently. Call it once, before training or after loading.

    Args:
        optimizer: any optimizer of ``mg.optim`` or ``torch.optim``.
        group: a process group of any backend; None: the default one.
        state: compare the states, too: names, shapes, dtypes, and the values of scalar ones. False for
            optimizers whose state is sharded over the ranks.

    Raises:
        ValueError: something differs; reports the first difference. On all ranks.
        TypeError: ``optimizer`` is not an optimizer. On all ranks.
        RuntimeError: there is no process group; a rank has ended, or did not respond within the group's timeout.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mg.distributed.check_optimizer(mg.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
        >>> torch.distributed.destroy_process_group()

    Source: ``torch.nn.parallel.DistributedDataParallel`` compares shapes of parameters only.
    """
    ranks = ProcessGroup(group, "check_optimizer")
    if not isinstance(optimizer, Optimizer):
        error = TypeError(f"optimizer must be a torch.optim.Optimizer, found {type(optimizer).__name__}")
        check_consistent(ranks, "", error)
    parts = [f"an optimizer of class {type(optimizer).__name__}"]
    for number, options in enumerate(optimizer.param_groups):
        names = sorted(set(options) - {"params"})
        parts += [f"{name}={shown(options[name])} in group {number}" for name in names]
        for place, param in enumerate(options["params"]):
            where = f"parameter {place} of group {number}"
            parts.append(f"{where} of shape {tuple(param.shape)} and {param.dtype}")
            known = optimizer.state.get(param, {}) if state else {}
            parts += [f"state {name!r} of {where}: {shown(known[name])}" for name in sorted(known)]
    check_consistent(ranks, "; ".join(part.replace(";", ",") for part in parts))


def check_parameters(module_or_params: nn.Module | Tensor | Iterable[Tensor], group: Any = None) -> None:
    """Raise on all ranks if their parameters (and a module's buffers) are not equal, bit for bit.

    Reads all of them, so call it only occasionally. DTensors, which differ between ranks, are ignored.

    Args:
        module_or_params: a module, a parameter, or parameters in the same order on all ranks.
        group: a process group of any backend; None: the default one.

    Raises:
        ValueError: something differs; reports the first difference. On all ranks.
        TypeError: something among the parameters is not a tensor. On all ranks.
        RuntimeError: there is no process group; a rank has ended, or did not respond within the group's timeout.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> mg.distributed.check_parameters(torch.nn.Linear(2, 1))
        >>> torch.distributed.destroy_process_group()

    Source: comparison of replicas by a digest, as for files.
    """
    ranks = ProcessGroup(group, "check_parameters")
    parts = []
    with Postponed() as postponed:
        for name, tensor in _named(module_or_params):
            digest = hashlib.blake2b(as_bytes(tensor).cpu().numpy().tobytes(), digest_size=12).hexdigest()
            parts.append(f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype} with digest {digest}")
    check_consistent(ranks, "; ".join(parts), postponed.error)


def _named(given: nn.Module | Tensor | Iterable[Tensor]) -> Iterable[tuple[str, Tensor]]:
    if isinstance(given, nn.Module):
        found: list[tuple[str, Any]] = [(f"parameter {name!r}", p) for name, p in given.named_parameters()]
        found += [(f"buffer {name!r}", b) for name, b in given.named_buffers()]
    else:
        listed = [given] if isinstance(given, (Tensor, MaskedTensor)) else list(given)
        found = [(f"parameter {number}", p) for number, p in enumerate(listed)]
    for name, one in found:
        if not isinstance(one, (Tensor, MaskedTensor)):
            raise TypeError(f"{name} must be a tensor, found {type(one).__name__}")
        tensor = one._values if isinstance(one, MaskedTensor) else one
        if not is_distributed_tensor(tensor) and tensor.layout is torch.strided:
            yield name, tensor
