"""A masked gradient in ``.grad``, where PyTorch's tools look for one: norms and scaling are right, the rest raises."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_map_only

from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.gradients.step_hooks import StepObserver, observe_steps, parameters_of
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.tensor import stored_of

__all__ = ["MaskedGradient"]

aten = torch.ops.aten
#: What is asked of all entries together, to which a missing gradient contributes nothing.
NORMS = frozenset({aten.linalg_vector_norm, aten.norm, aten._foreach_norm})
#: What is asked of each entry: a missing gradient is 0.
READING = frozenset(
    {aten.abs, aten.eq, aten.ne, aten.isnan, aten.isinf, aten.sum, aten.amax, aten.max, aten.all, aten.any}
)
#: What is done to each entry that there is.
SCALING = frozenset(
    getattr(aten, name)
    for names in ("mul_", "div_", "neg_", "clamp_", "clamp_min_", "clamp_max_")
    for name in (names, f"_foreach_{names}")
    if hasattr(aten, name)
)
UNSCALING = aten._amp_foreach_non_finite_check_and_unscale_
SAME = frozenset({aten.detach, aten.detach_, aten.alias})
COPYING = frozenset({aten.clone, aten._to_copy})

NOT_MASKED = (
    "the gradient of a parameter of shape {shape} is masked (mg.attach_gradient, or a table with a capacity): {who} "
    "does not know that its other entries have none. Use mg.optim, mg.clip_grad_norm_ and mg.amp.GradScaler, or "
    "make it dense first, with zeros where there is none: param.grad = param.grad.to_dense()"
)


class MaskedGradient(torch.Tensor):
    """What ``param.grad`` is where its gradient is masked; ``gradient`` is a MaskedTensor, PaddedRows or sparse tensor.

    Entries without a gradient count as 0 in norms and checks, and stay without one when the others are scaled, so that
    ``torch.nn.utils.clip_grad_norm_``, ``torch.amp.GradScaler`` and ``zero_grad`` are right. ``to_dense()`` makes a
    plain tensor. Everything else raises RuntimeError, torch.optim's steps before they change anything.
    """

    gradient: Any
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, gradient: Any) -> MaskedGradient:
        """A tensor without memory of its own, around ``gradient``."""
        made = torch.Tensor._make_wrapper_subclass(
            cls, gradient.shape, dtype=gradient.dtype, device=gradient.device
        )
        made.gradient = gradient
        observe_steps(_GUARD)
        return made

    def __init__(self, gradient: Any) -> None:  # noqa: ARG002
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"MaskedGradient({self.gradient!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskedGradient:
        gradient = self.gradient
        copied = gradient.clone() if isinstance(gradient, Tensor) else copy.deepcopy(gradient, memo)
        return MaskedGradient(copied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return MaskedGradient, (self.gradient,)

    @property  # type: ignore[override]
    def data(self) -> MaskedGradient:
        """The same gradient, as PyTorch's modules read and write it when they are converted."""
        return self.detach()  # type: ignore[return-value]

    @data.setter
    def data(self, other: MaskedGradient) -> None:
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.gradient = other.gradient

    def share_memory_(self) -> MaskedGradient:
        """Put the gradient where other processes see it; it has no memory of its own that PyTorch could put there."""
        gradient = self.gradient
        for part in (gradient.rows, gradient.values) if isinstance(gradient, PaddedRows) else (gradient,):
            part.share_memory_()
        return self

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError(NOT_MASKED.format(shape=tuple(self.shape), who="DLPack"))

    def to_dense(self, *_: Any, **__: Any) -> Tensor:
        """A plain tensor, 0 where there is no gradient."""
        if isinstance(self.gradient, MaskedTensor):
            return self.gradient.to_dense().filled(0)  # type: ignore[no-any-return]
        return self.gradient.to_dense()  # type: ignore[no-any-return]

    def clean(self) -> MaskedGradient:
        """Itself, merged, with zeros under the mask, in memory of its own."""
        gradient = self.gradient
        if isinstance(gradient, PaddedRows):
            self.gradient = gradient.merged()
        elif isinstance(gradient, MaskedTensor) and stored_of(gradient) is None:
            self.gradient = masked(gradient.filled(0), gradient._pattern.mask)
        return self

    def empty(self) -> MaskedGradient:
        """Itself, with zeros; padded rows name no row."""
        gradient = self.gradient
        if isinstance(gradient, PaddedRows):
            nowhere = torch.full_like(gradient.rows, gradient.shape[0])
            self.gradient = PaddedRows(nowhere, torch.zeros_like(gradient.values), gradient.shape, 0)
        else:
            self.values().zero_()
        return self

    def values(self) -> Tensor:
        """The tensor that holds the entries there are."""
        gradient = self.gradient
        if isinstance(gradient, MaskedTensor):
            return gradient._values
        return gradient.values if isinstance(gradient, PaddedRows) else gradient.values()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        if packet in SAME:
            return args[0] if packet is aten.detach_ else MaskedGradient(args[0].gradient)
        if packet in COPYING:
            return MaskedGradient(_copied(args[0].gradient, kwargs))
        if packet in NORMS and _of_everything(args, kwargs):
            return func(*_with(args, _entries_and_a_zero), **kwargs)
        if packet in READING or packet in NORMS:
            return func(*_with(args, MaskedGradient.to_dense), **kwargs)
        if packet is UNSCALING:
            func(*_with(args, lambda g: g.clean().values()), **kwargs)
            return None
        if packet in (aten.zero_, aten._foreach_zero_):
            _with(args[0], MaskedGradient.empty)
            return args[0] if packet is aten.zero_ else None
        if packet in SCALING and isinstance(args[0], (MaskedGradient, list, tuple)):
            adds_up = "clamp" not in packet.__name__  # several entries of one row
            func(_with(args[0], lambda g: (g if adds_up else g.clean()).values()), *args[1:], **kwargs)
            return args[0] if isinstance(args[0], MaskedGradient) else None
        shape = next(tuple(a.shape) for a in _listed(args, kwargs) if isinstance(a, MaskedGradient))
        # no TypeError, for which Python would say "unsupported operand" in its own words
        raise RuntimeError(NOT_MASKED.format(shape=shape, who=f"torch.{packet.__name__}"))


def _of_everything(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a norm is that of the whole tensor."""
    dims = any(isinstance(a, (list, tuple)) and a for a in args[2:])
    return not (dims or kwargs.get("dim") or kwargs.get("keepdim") or True in args[2:])


def _entries_and_a_zero(gradient: MaskedGradient) -> Tensor:
    """What a norm of all entries needs: one zero stands for all missing gradients (orders below 0 see it, too)."""
    values = MaskedGradient(gradient.gradient).clean().values()
    return values if len(values) == gradient.numel() else F.pad(values.reshape(-1), (0, 1))


def _copied(gradient: Any, options: dict[str, Any]) -> Any:
    """The gradient in another dtype, on another device, or in memory of its own."""
    options = {name: options.get(name) for name in ("dtype", "device", "non_blocking") if options.get(name)}
    if isinstance(gradient, PaddedRows):
        device = options.get("device", gradient.device)
        values = gradient.values.to(**options, copy=True)
        return PaddedRows(gradient.rows.to(device, copy=True), values, gradient.shape, gradient.listed)
    return gradient.to(**options, copy=True)


def _with(args: Any, read: Callable[[MaskedGradient], Tensor]) -> Any:
    return tree_map_only(MaskedGradient, read, args)


def _listed(args: Iterable[Any], kwargs: dict[str, Any]) -> list[Any]:
    flat = [part for a in args for part in (a if isinstance(a, (list, tuple)) else [a])]
    return [*flat, *kwargs.values()]


class _DenseStepGuard(StepObserver):
    """An optimizer that takes every entry of a gradient must not step with a masked one."""

    def gradients_ready(self, optimizer: Optimizer) -> None:
        if getattr(optimizer, "takes_masked_gradients", False):
            return
        for param in parameters_of(optimizer):
            if isinstance(param.grad, MaskedGradient):
                kind = type(optimizer)
                place = "torch.optim" if kind.__module__.startswith("torch.optim.") else kind.__module__
                raise RuntimeError(
                    NOT_MASKED.format(shape=tuple(param.shape), who=f"{place}.{kind.__name__}")
                )


_GUARD = _DenseStepGuard()
