"""Parameters of a module: those reduced by PyTorch, those exchanged by us, and local ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from maskgrad.distributed.all_reduction import is_distributed_tensor

__all__ = ["ParameterPartition", "check_gradient_is_dense", "partition"]


@dataclass(frozen=True, slots=True)
class ParameterPartition:
    """Parameters that need a gradient, by name; a shared one by its first name."""

    dense: dict[str, Tensor] = field(default_factory=dict)
    """Reduced by DistributedDataParallel, which sums dense tensors in buckets."""
    exchanged: dict[str, Tensor] = field(default_factory=dict)
    """Exchanged by us, depending on the kind of each gradient."""
    local: dict[str, Tensor] = field(default_factory=dict)
    """Not exchanged: DTensors, and parameters that a module declares as local."""

    def described(self) -> str:
        """A string that is equal on ranks that can train together."""
        return "; ".join(
            f"parameter {name!r} of shape {tuple(p.shape)} and {p.dtype} ({kind}, {p.device.type})"
            for kind, params in (("dense", self.dense), ("exchanged", self.exchanged))
            for name, p in params.items()
        )


def partition(module: nn.Module, sparse: Iterable[str] = ()) -> ParameterPartition:
    """Divide the parameters of ``module``.

    Layers of ``torch.nn`` without ``sparse=True`` have dense gradients. The gradients of parameters in other classes
    are unknown, so they are exchanged depending on their actual kind; and so are those named in ``sparse``.
    """
    everything: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    chosen = _chosen(everything, sparse)
    chosen |= {
        id(p)
        for owner in module.modules()
        for p in owner.parameters(recurse=False)
        if not _dense_by_nature(owner)
    }
    own: set[int] = set()
    for prefix, owner in module.named_modules():
        for name in getattr(owner, "_ddp_params_and_buffers_to_ignore", ()):
            whole = f"{prefix}.{name}" if prefix else name
            own |= {id(everything[whole])} if whole in everything else set()
    found = ParameterPartition()
    for name, p in module.named_parameters():
        if id(p) in own or is_distributed_tensor(p):
            found.local[name] = p
        elif p.requires_grad:
            (found.exchanged if id(p) in chosen else found.dense)[name] = p
    return found


def _chosen(everything: dict[str, Tensor], sparse: Iterable[str]) -> set[int]:
    chosen: set[int] = set()
    for one in [sparse] if isinstance(sparse, str) else sparse:
        found = {id(p) for name, p in everything.items() if f"{name}.".startswith(f"{one}.")}
        if not found:
            raise ValueError(
                f"sparse contains {one!r}, but the module has no such parameter or submodule; give names, as of "
                "module.named_parameters()"
            )
        chosen |= found
    return chosen


def _dense_by_nature(owner: nn.Module) -> bool:
    if getattr(owner, "sparse", False):
        return False
    return type(owner).__module__.startswith(("torch.nn.", "torch.ao.")) or type(owner) is nn.Module


def check_gradient_is_dense(name: str, gradient: Tensor) -> None:
    """Raise a RuntimeError if a parameter of DistributedDataParallel has a sparse gradient."""
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"parameter {name!r} has a gradient of layout {gradient.layout}, although its layer is one of torch.nn "
            f"with dense gradients; declare it: mg.distributed.prepare(module, sparse=[{name!r}])"
        )
