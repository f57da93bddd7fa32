"""Dense gradients: the parameters for PyTorch's own step, and that step.

It is the step of the class that an optimizer of ``mg.optim`` is derived from, on groups that contain only these
parameters. The fused loops are used on a CPU unless a group says otherwise, PyTorch's own choice elsewhere (AdamW on
one thread, PyTorch 2.13: 200 tensors of 64 x 64 fused 1.2 ms, foreach 4.1, one by one 6.0). Half precision, which
PyTorch's other loops round after each operation, and all special cases are left to the engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # imports the compiler only when it is called

from maskgrad.gradients.attached import attached_gradient
from maskgrad.gradients.train_only import trained_entries
from maskgrad.optim.lazy.rows import lazy_rows_of
from maskgrad.optim.rule import Hyperparameters
from maskgrad.semantics.entries import HALVES

__all__ = ["FUSED", "SINGLE", "TorchGroup", "TorchSteps", "are_usual"]

STRIDED = torch.strided
SINGLE = (torch.float32, torch.float64)
REAL = {*SINGLE, *HALVES}
#: The optimizers of PyTorch with loops that read and write each entry once, also on a CPU.
FUSED = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW)


class TorchSteps(torch.optim.Optimizer):
    """An optimizer that passes parameters to the step of its PyTorch base class."""

    #: .grad may be masked: see maskgrad.gradients.attached.
    takes_masked_gradients = True

    _torch: ClassVar[type[torch.optim.Optimizer] | None] = None
    """PyTorch's optimizer for dense gradients, a base class; None: PyTorch has none."""

    def _patch_step_function(self) -> None:
        """Called when an optimizer is created, copied or loaded; PyTorch wraps the class's step with hooks here.

        The work of a step depends on the layouts of gradients and on their number of entries, and a COO ``.grad``
        cannot enter a graph: so a graph breaks around the step.
        """
        super()._patch_step_function()
        kind = type(self)
        if not getattr(kind.step, "is_uncompiled", False):
            kind.step = _disable_dynamo(kind.step)  # type: ignore[method-assign, assignment]
            kind.step.is_uncompiled = True  # type: ignore[attr-defined]

    def _step_as_torch(self, groups: list[dict[str, Any]]) -> None:
        """Run PyTorch's step on ``groups``, without its hooks: those of this step were called already."""
        kept, self.param_groups = self.param_groups, groups
        try:
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                inspect.unwrap(self._torch.step)(self)  # type: ignore[union-attr]
        finally:
            self.param_groups = kept

    def _init_group(self, group: dict[str, Any], params: list[Any], grads: list[Any], *lists: Any) -> Any:
        """Replaces PyTorch's, which would repeat lookups: a fifth of a step on small parameters."""
        if "grads" not in group:
            return super()._init_group(group, params, grads, *lists)  # type: ignore[misc]
        params += group["params"]
        grads += group["grads"]
        for name, states in zip(group["names"], lists, strict=False):
            states.extend(group["states"].get(name, ()))
        return super()._init_group({**group, "params": []}, [], [], *([] for _ in lists))  # type: ignore[misc]


class TorchGroup:
    """Sorts the parameters of a group with checked options."""

    def __init__(
        self, kind: type[torch.optim.Optimizer], group: dict[str, Any], numbers: Hyperparameters
    ) -> None:
        self.group = group
        self.names = tuple(declared.name for declared in numbers.states)
        self.counts = numbers.counts
        self.known = (*self.names, *self.counts)
        self.order = (*(declared.name for declared in numbers.rule.states), "step")
        self.has_tensors = any(isinstance(value, Tensor) for value in (group["lr"], *group.get("betas", ())))
        self.asked = bool(group.get("fused"))
        unasked = group.get("fused") is None and group.get("foreach") is None
        self.can_fuse = issubclass(kind, FUSED) and (self.asked or unasked) and not group["differentiable"]

    def sort(self, states: Mapping[Tensor, Any]) -> tuple[list[dict[str, Any]], list[tuple[int, Tensor]]]:
        """Return the groups for PyTorch's step, and the other parameters, with their indices in the group."""
        params = self.group["params"]
        found: list[Any] = [*map(states.get, params)] if self.known else []
        others = list[tuple[int, Tensor]]()
        usual, grads, kept = list[Tensor](), list[Any](), list[Any]()
        fresh, single = list[Tensor](), list[Tensor]()
        for number, (param, state) in enumerate(zip(params, found or params, strict=True)):
            grad = param.grad
            if grad is None and not param.__dict__:
                continue
            in_order: bool | None = None
            if (
                type(grad) is Tensor
                and grad.layout is STRIDED
                and (not param.__dict__ or is_simple(param))
                and grad.dtype is param.dtype
                and grad.shape == param.shape
            ):
                in_order = not (found and state) or are_usual(param, state, self.names, self.counts)
            # The fused loops assume that all tensors have the same order in memory.
            fused = (
                self.can_fuse
                and in_order
                and param.is_contiguous()
                and grad.is_contiguous()
                and param.dtype in REAL
                and (self.asked or param.is_cpu)
            )
            if in_order is None or (not fused and param.dtype in HALVES):
                others.append((number, param))
            elif not fused:
                single.append(param)
            elif found and not state:
                fresh.append(param)
            else:
                usual.append(param)
                grads.append(grad)
                kept.append(state)
        groups = []
        if usual:
            own = {name: [state[name] for state in kept] for name in self.known}
            known = {"params": usual, "grads": grads, "states": own, "names": self.order}
            groups.append({**self.group, **known, "fused": True, "foreach": False})
        if fresh:
            groups.append({**self.group, "params": fresh, "fused": True, "foreach": False})
        if single:
            groups.append({**self.group, "params": single, "fused": False})
        for group in groups:
            if group["params"][0].is_cpu:
                group["capturable"] = False
            if self.has_tensors and not group.get("capturable"):
                group["foreach"] = False  # PyTorch's default, which refuses both together
        return groups, others


def are_usual(
    param: Tensor, state: Mapping[str, Any], names: Sequence[str], counts: Sequence[str]
) -> bool | None:
    """Return whether the states ``names`` are contiguous; None: PyTorch's step does not take them and ``counts``."""
    if len(state) != len(names) + len(counts):
        return None
    dtype, shape, in_order = param.dtype, param.shape, True
    for name in names:
        t = state.get(name)
        if type(t) is not Tensor or t.dtype is not dtype or t.shape != shape or t.layout is not STRIDED:
            return None
        in_order = in_order and t.is_contiguous()
    for name in counts:
        t = state.get(name)
        if type(t) is not Tensor or t.dtype not in SINGLE or t.numel() != 1:
            return None
    return in_order


def is_simple(param: Tensor) -> bool:
    """Return whether all entries are trained and up to date, and the only gradient is ``.grad``."""
    return trained_entries(param) is None and lazy_rows_of(param) is None and attached_gradient(param) is None
