"""Modules that exchange gradients by themselves, found and silenced for as long as somebody else does it."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Wrappers", "imported", "replicating", "sharding"]


class Wrappers:
    """What exchanges the gradients of some parameters: DistributedDataParallel, ``prepare``, ``fully_shard``.

    Args:
        module: where to look; None: there are only parameters.
        params: the parameters.

    Raises:
        ValueError: somebody else exchanges a gradient of ``params``.
        TypeError: a wrapper that cannot be silenced.
    """

    def __init__(self, module: nn.Module | None, params: Sequence[Tensor]) -> None:
        modules = [] if module is None else list(module.modules())
        self.replicated = [m for m in modules if _is(m, replicating())]
        self.sharded: list[Any] = [m for m in modules if _is(m, sharding())]
        old = imported("torch.distributed.fsdp", "FullyShardedDataParallel")
        if any(_is(m, old) for m in modules):
            raise TypeError(
                "GradientAccumulator: the module holds a FullyShardedDataParallel; use "
                "torch.distributed.fsdp.fully_shard, whose exchange can be put off"
            )
        known = {id(m) for m in modules} | {id(d) for m in self.replicated for d in getattr(m, "_dense", ())}
        _refuse_others({id(p) for p in params}, known, (*replicating(), *sharding(), *old))
        self._stack = contextlib.ExitStack()

    def __bool__(self) -> bool:
        return bool(self.replicated or self.sharded)

    def silence(self) -> None:
        """Let nobody exchange anything until :meth:`close`."""
        for wrapper in self.replicated:
            self._stack.enter_context(wrapper.no_sync())  # type: ignore[operator]
        for wrapper in self.sharded:
            before = [group.reduce_grads for group in _groups(wrapper)]
            wrapper.set_requires_gradient_sync(False, recurse=False)
            self._stack.callback(wrapper.set_requires_gradient_sync, all(before), recurse=False)

    def close(self) -> None:
        """Let them exchange again."""
        self._stack.close()

    def group(self) -> Any:
        """The process group of those that replicate parameters; None: the default one.

        Raises:
            ValueError: they have different ones.
        """
        found = [w._group if hasattr(w, "_dense") else w.process_group for w in self.replicated]
        world = torch.distributed.group.WORLD
        distinct = {id(world if group is None else group): group for group in found}
        if len(distinct) > 1:
            raise ValueError(
                "GradientAccumulator: the module holds wrappers of different process groups; say which ranks "
                "accumulate together: group="
            )
        return next(iter(distinct.values()), None)

    def reduce_shards(self) -> None:
        """Let ``fully_shard`` add up what it has gathered, as at the end of a backward pass that exchanges."""
        for wrapper in self.sharded:
            wrapper.set_requires_gradient_sync(True, recurse=False)
        try:
            for wrapper in self.sharded:
                state = wrapper._get_fsdp_state()
                if state._is_root:
                    context = state._state_ctx
                    # since PyTorch 2.15 set as a backward pass begins, and unset as it ends
                    if getattr(context, "manual_backward_finalization_active", False) is None:
                        context.manual_backward_finalization_active = False
                    state._root_post_backward_final_callback()
        finally:
            for wrapper in self.sharded:
                wrapper.set_requires_gradient_sync(False, recurse=False)
        for wrapper in self.sharded:  # averages were made: of so many ranks
            for group in _groups(wrapper):
                factor = group.gradient_divide_factor or group.mesh_info.mesh.size()
                for param in (one.sharded_param for one in group.fsdp_params):
                    if param.grad is not None:
                        param.grad.mul_(factor)


def _groups(wrapper: Any) -> list[Any]:
    """The groups of parameters that ``fully_shard`` reduces together."""
    state = wrapper._get_fsdp_state()
    found = getattr(state, "_fsdp_param_groups", None)
    if found is None:  # up to PyTorch 2.10 there is at most one
        found = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(found)


def replicating() -> tuple[type, ...]:
    """Wrappers of which every rank has the same parameters."""
    return (
        *imported("torch.nn.parallel.distributed", "DistributedDataParallel"),
        *imported("maskgrad.distributed.data_parallel", "DataParallel"),
    )


def sharding() -> tuple[type, ...]:
    """Modules of which each rank has a part of the parameters."""
    return imported("torch.distributed.fsdp", "FSDPModule")


def imported(module: str, name: str) -> tuple[type, ...]:
    """A class, where somebody has imported it: otherwise there are no instances."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)


def _is(x: object, kinds: tuple[type, ...]) -> bool:
    return issubclass(type(x), kinds)  # not isinstance: proxies answer in their own ways


def _refuse_others(params: set[int], known: set[int], kinds: tuple[type, ...]) -> None:
    if not kinds or not any(True for _ in _others(params, known, kinds)):
        return
    gc.collect()  # it may be gone, but for a cycle of references
    for other in _others(params, known, kinds):
        raise ValueError(
            f"GradientAccumulator: a {type(other).__name__} exchanges the gradients of these parameters in each "
            "backward pass, and only where it is given can it be told to wait: GradientAccumulator(model) with the "
            "module that is called, instead of its parameters or what is inside"
        )


def _others(params: set[int], known: set[int], kinds: tuple[type, ...]) -> Iterable[Any]:
    for one in gc.get_objects():
        if _is(one, kinds) and id(one) not in known and any(id(p) in params for p in one.parameters()):
            yield one
