"""Dense gradients: the parameters for PyTorch's own step, and that step.

It is the step of the class that an optimizer of ``mg.optim`` is derived from, on groups that contain only these
parameters. The fused loops are used on a CPU unless a group says otherwise, PyTorch's own choice elsewhere (AdamW on
one thread, PyTorch 2.13: 200 tensors of 64 x 64 fused 1.2 ms, foreach 4.1, one by one 6.0). Half precision, which
PyTorch's other loops round after each operation, and all special cases are left to the engine.
"""

from __future__ import annotations

import inspect
import itertools
import operator
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
GRAD, DTYPE = operator.attrgetter("grad"), operator.attrgetter("dtype")
FUSIBLE: dict[str, Any] = {"fused": True, "foreach": False}
SHAPE, LAYOUT = operator.attrgetter("shape"), operator.attrgetter("layout")
SINGLE = (torch.float32, torch.float64)
REAL = {*SINGLE, *HALVES}
#: The optimizers of PyTorch with loops that read and write each entry once, also on a CPU.
FUSED = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW)


class TorchSteps(torch.optim.Optimizer):
    """An optimizer that passes parameters to the step of its PyTorch base class."""

    #: .grad may be masked (maskgrad.gradients.attached), and frozen entries (mg.train_only) are left alone.
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
        # States, and the dtype and shapes of the parameters that they were found to fit.
        self.checked, self.fitted = list[Any](), tuple[Any, ...]()

    def sort(self, states: Mapping[Tensor, Any]) -> tuple[list[dict[str, Any]], list[tuple[int, Tensor]]]:
        """Return the groups for PyTorch's step, and the other parameters, with their indices in the group."""
        params = self.group["params"]
        grads = [*map(GRAD, params)]
        found: list[Any] = [*map(states.get, params)] if self.known else []
        plain = self.can_fuse and {*map(type, grads)} == {Tensor} and {*map(LAYOUT, grads)} == {STRIDED}
        whole = self._whole(params, grads, found) if plain else None
        others = list[tuple[int, Tensor]]()
        fusible, fresh, single = list[Tensor](), list[Tensor](), list[Tensor]()
        one_by_one = zip(params, grads, found or params, strict=True) if whole is None else ()
        for number, (param, grad, state) in enumerate(one_by_one):
            if grad is None and not param.__dict__:
                continue
            fits = (
                type(grad) is Tensor
                and grad.layout is STRIDED
                and (not param.__dict__ or is_simple(param))
                and grad.dtype is param.dtype
                and grad.shape == param.shape
            )
            is_fresh = fits and not (found and state)
            in_order = is_fresh or (are_usual(param, state, self.names, self.counts) if fits else None)
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
            else:
                (single if not fused else fresh if is_fresh else fusible).append(param)
        # The fused loops take either states of all or of none.
        parts = [whole or {**FUSIBLE, "params": fusible}, {**FUSIBLE, "params": fresh}]
        parts.append({"params": single, "fused": False})
        groups = [{**self.group, **part} for part in parts if part["params"]]
        for group in groups:
            if group["params"][0].is_cpu:
                group["capturable"] = False
            if self.has_tensors and not group.get("capturable"):
                group["foreach"] = False  # PyTorch's default, which refuses both together
        return groups, others

    def _whole(self, params: list[Any], grads: list[Any], found: list[Any]) -> dict[str, Any] | None:
        """What the fused loops read, if they take all parameters: 200 of 64 x 64 step 15 % faster than one by one."""
        dtypes, shapes = {*map(DTYPE, params)}, [*map(SHAPE, params)]
        if (
            len(dtypes) != 1
            or not dtypes <= REAL
            or not (self.asked or params[0].is_cpu)
            or any(map(vars, params))
            or {*map(DTYPE, grads)} != dtypes
            or [*map(SHAPE, grads)] != shapes
            or not all(map(Tensor.is_contiguous, itertools.chain(params, grads)))
            or not all(found)
        ):
            return None
        states: dict[str, Any] = {name: [state.get(name) for state in found] for name in self.known}
        tensors = [*itertools.chain(*states.values())]
        known = len(tensors) == len(self.checked) and all(map(operator.is_, tensors, self.checked))
        if tensors and (not known or self.fitted != (dtypes, shapes)):
            if not all(are_usual(*one, self.names, self.counts) for one in zip(params, found, strict=True)):
                return None
            self.checked, self.fitted = tensors, (dtypes, shapes)
        return {**FUSIBLE, "params": params, "grads": grads, "states": states, "names": self.order}


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
