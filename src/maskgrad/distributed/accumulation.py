"""Ranks that accumulate gradients together: exchanges of wrappers are deferred, totals and gradients are summed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from maskgrad.distributed.agreement import check_consistent, digest
from maskgrad.distributed.all_reduction import is_distributed_tensor
from maskgrad.distributed.data_parallel import DataParallel
from maskgrad.distributed.exchange import NamedGradient, exchanged
from maskgrad.distributed.process_group import ProcessGroup, as_bytes, from_bytes
from maskgrad.gradients.accumulation_ranks import Alone
from maskgrad.gradients.attached import AnyGradient
from maskgrad.masked_tensor.torch_patches.data_parallel import REPLICAS

__all__ = ["REPLICATING", "AccumulatingRanks", "imported", "sharding"]

#: Wrappers whose parameters are the same on every rank.
REPLICATING = (DistributedDataParallel, DataParallel)


class AccumulatingRanks(Alone):
    """The ranks that accumulate gradients together; wrappers in ``module`` do not exchange until :meth:`close`.

    Wrappers are DistributedDataParallel, the result of ``prepare``, and modules changed by ``fully_shard``.

    Raises:
        ValueError: a wrapper outside ``module`` exchanges a gradient of ``params``, or groups differ.
        TypeError: a wrapper whose exchange cannot be deferred.
    """

    def __init__(self, module: nn.Module | None, params: Sequence[Tensor], group: Any) -> None:
        modules = [] if module is None else list(module.modules())
        replicated: list[Any] = [m for m in modules if _is(m, REPLICATING)]
        self._shards: list[Any] = [m for m in modules if _is(m, sharding())]
        if any(_is(m, imported("torch.distributed.fsdp", "FullyShardedDataParallel")) for m in modules):
            raise TypeError(
                "GradientAccumulator: the module contains a FullyShardedDataParallel; use "
                "torch.distributed.fsdp.fully_shard, whose exchange can be deferred"
            )
        _check_others(params, [*modules, *(d for m in replicated for d in getattr(m, "_dense", ()))])
        group = _common_group(replicated) if group is None else group
        self._ranks = ProcessGroup(group, "GradientAccumulator")
        self.size, self.rank = self._ranks.size, self._ranks.rank
        self.sharded = bool(self._shards)
        self.silenced = bool(replicated or self._shards)
        self._stack = contextlib.ExitStack()
        for wrapper in replicated:
            self._stack.enter_context(wrapper.no_sync())
        for wrapper in self._shards:
            before = [group.reduce_grads for group in _groups(wrapper)]
            wrapper.set_requires_gradient_sync(False, recurse=False)
            self._stack.callback(wrapper.set_requires_gradient_sync, all(before), recurse=False)

    def collected(self, own: Any, error: Exception | None, trained: Mapping[str, Tensor]) -> list[Any]:
        """Collect the data of each rank, by rank; raises on all ranks if one has an error, or trains others."""
        described = [
            f"parameter {name!r} of {p.dtype} and shape {tuple(p.shape)}" for name, p in trained.items()
        ]
        return self._agreed(own, error, "; ".join(described))

    def _agreed(self, own: Any, error: Exception | None, plan: str) -> list[Any]:
        texts = self._ranks.gather_texts(json.dumps([error is not None, digest(plan), own]))
        rows = [json.loads(text) for text in texts]
        if any(failed or planned != rows[0][1] for failed, planned, _ in rows):
            check_consistent(self._ranks, plan, error)
        return [one for _, _, one in rows]

    def gathered(self, tensors: Sequence[Tensor], error: Exception | None = None) -> list[list[Tensor]]:
        """Gather the tensors of all ranks, by rank, whose first sizes may differ; raises as :meth:`collected`."""
        kinds = [f"{t.dtype} and shape (n, *{list(t.shape[1:])})" for t in tensors]
        rows = self._agreed([len(t) for t in tensors], error, f"outputs of {', '.join(kinds)}")
        found: list[list[Tensor]] = [[] for _ in rows]
        for place, tensor in enumerate(tensors):
            data = as_bytes(tensor.to(self._ranks.transport(tensor.device)))
            width = max(lengths[place] for lengths in rows)
            width *= tensor.shape[1:].numel() * tensor.element_size()
            padded = data.new_zeros(width + -width % 16)
            padded[: len(data)] = data
            for mine, row, lengths in zip(found, self._ranks.gather(padded), rows, strict=True):
                values, _ = from_bytes(row, tensor.dtype, (lengths[place], *tensor.shape[1:]))
                mine.append(values.to(tensor.device))
        return found

    def reduce_shards(self) -> None:
        """Let ``fully_shard`` reduce its accumulated gradients, as at the end of a synchronizing backward pass."""
        for wrapper in self._shards:
            wrapper.set_requires_gradient_sync(True, recurse=False)
        try:
            for wrapper in self._shards:
                state = wrapper._get_fsdp_state()
                if state._is_root:
                    context = state._state_ctx
                    # since PyTorch 2.15 set when a backward pass begins, and unset when it ends
                    if getattr(context, "manual_backward_finalization_active", False) is None:
                        context.manual_backward_finalization_active = False
                    state._root_post_backward_final_callback()
        finally:
            for wrapper in self._shards:
                wrapper.set_requires_gradient_sync(False, recurse=False)
        for wrapper in self._shards:  # averages over this number of ranks
            for group in _groups(wrapper):
                factor = group.gradient_divide_factor or group.mesh_info.mesh.size()
                for param in (one.sharded_param for one in group.fsdp_params):
                    if param.grad is not None:
                        param.grad.mul_(factor)

    def exchanged(
        self, params: Sequence[Tensor], gradients: Sequence[AnyGradient | None]
    ) -> list[AnyGradient | None]:
        """Sums over the ranks; out of place."""
        found = list(gradients)
        places = [n for n, p in enumerate(params) if not is_distributed_tensor(p)]
        named = [
            NamedGradient(f"gradient of parameter {n}", p.shape, p.dtype, p.device, gradients[n])
            for n in places
            for p in (params[n],)
        ]
        if self.size > 1:
            for place, gradient in zip(places, exchanged(named, self._ranks, "sum"), strict=True):
                found[place] = gradient
        return found

    def close(self) -> None:
        """Let wrappers exchange again."""
        self._stack.close()


def _common_group(wrappers: list[Any]) -> Any:
    """The process group of wrappers; None: the default one."""
    found = [w._group if _is(w, (DataParallel,)) else w.process_group for w in wrappers]
    world = torch.distributed.group.WORLD
    distinct = {id(world if group is None else group): group for group in found}
    if len(distinct) > 1:
        raise ValueError(
            "GradientAccumulator: the module contains wrappers of different process groups; pass the ranks that "
            "accumulate together as group="
        )
    return next(iter(distinct.values()), None)


def _groups(wrapper: Any) -> list[Any]:
    """The groups of parameters that ``fully_shard`` reduces together."""
    return list(wrapper._get_fsdp_state()._fsdp_param_groups)


def sharding() -> tuple[type, ...]:
    """Modules whose parameters are sharded over the ranks."""
    return imported("torch.distributed.fsdp", "FSDPModule")


def imported(module: str, name: str) -> tuple[type, ...]:
    """Return a class if it is imported; otherwise it has no instances."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)


def _is(x: object, kinds: tuple[type, ...]) -> bool:
    return issubclass(type(x), kinds)  # not isinstance: proxies may answer differently


def _check_others(params: Sequence[Tensor], known: list[nn.Module]) -> None:
    """Raise a ValueError if a wrapper that is not ``known`` exchanges the gradient of one of the parameters."""
    ids, inside = {id(p) for p in params}, {id(m) for m in known}
    # PyTorch's own list of modules changed by fully_shard
    states = sys.modules.get("torch.distributed._composable_state")
    changed = [m for m in getattr(states, "_module_state_mapping", ()) if _is(m, sharding())]
    for other in (*list(REPLICAS), *changed):
        if id(other) not in inside and any(id(p) in ids for p in other.parameters()):
            raise ValueError(
                f"GradientAccumulator: a {type(other).__name__} exchanges the gradients of these parameters in each "
                "backward pass, and can defer this only if passed itself: GradientAccumulator(model) with the module "
                "that is called, instead of its parameters or submodules"
            )
