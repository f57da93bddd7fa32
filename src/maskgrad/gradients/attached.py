"""The gradient that a parameter has in ``.grad``: a plain tensor, or a masked one for PyTorch's tools.

Norms and scaling of a masked gradient are right; all other functions of PyTorch raise an error for it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo  # imports the compiler only when it is called
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from maskgrad.gradients.gradient import AnyGradient
from maskgrad.gradients.step_hooks import StepObserver, named, observe_steps
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.mode import TRACED, mode

__all__ = [
    "AnyGradient", "MaskedGradient", "attached_gradient", "current_gradient", "grad_dtype", "keep_attached",
    "replace_gradient", "set_grad_dtype",
]  # fmt: skip

_ATTRIBUTE = "_maskgrad_gradient"
_HAS_GRAD_DTYPE = hasattr(Tensor, "grad_dtype")  # not in PyTorch 2.9, which PyTorch/XLA needs

aten = torch.ops.aten
#: Norms, to which missing gradients contribute nothing.
NORMS = frozenset({aten.linalg_vector_norm, aten.norm, aten._foreach_norm})
#: Functions that read entries: missing gradients are 0.
READING = frozenset(
    {aten.abs, aten.eq, aten.ne, aten.isnan, aten.isinf, aten.sum, aten.amax, aten.max, aten.all, aten.any}
)
#: Functions that change the specified entries in place.
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
    "the gradient of {where} is masked (mg.attach_gradient): {who} "
    "would treat its other entries as zeros. Use mg.optim, mg.clip_grad_norm_ and mg.amp.GradScaler, or "
    "make it dense first, with zeros for missing entries: param.grad = param.grad.to_dense()"
)


def attached_gradient(param: Tensor) -> AnyGradient | None:
    """The masked gradient of ``param``; None if it has none or a plain one."""
    gradient = param.grad
    if type(gradient) is MaskedGradient:
        return gradient.gradient  # type: ignore[no-any-return]
    attached: AnyGradient | None = getattr(param, _ATTRIBUTE, None)
    return attached


def keep_attached(param: Tensor, gradient: AnyGradient | None) -> None:
    """Set a gradient that is known to fit, detached; None removes it. On PyTorch/XLA it is an attribute."""
    if hasattr(param, _ATTRIBUTE):
        delattr(param, _ATTRIBUTE)
    if gradient is None:
        if type(param.grad) is MaskedGradient:
            param.grad = None
        return
    gradient = gradient.detach()
    if grad_dtype(param) not in (None, gradient.dtype):
        param.grad = None
        set_grad_dtype(param, gradient.dtype)
    if param.device.type == "xla" or grad_dtype(param) not in (None, gradient.dtype):
        setattr(param, _ATTRIBUTE, gradient)
    elif isinstance(gradient, Tensor) and gradient.layout in (torch.strided, torch.sparse_coo):
        param.grad = gradient
    else:
        (_hold_uncompiled if mode() in TRACED else _hold)(param, gradient)


def _hold(param: Tensor, gradient: AnyGradient) -> None:
    param.grad = MaskedGradient(gradient)


# Only when compiling: in eager mode it would import the compiler, which takes seconds.
_hold_uncompiled = _disable_dynamo(_hold)


def current_gradient(param: Tensor, name: str = "a parameter") -> AnyGradient | None:
    """The gradient for a step: the attached one, or ``.grad``; None if there is none, ValueError if there are both."""
    gradient = param.grad
    if type(gradient) is MaskedGradient:
        return gradient.gradient  # type: ignore[no-any-return]
    attached = attached_gradient(param)
    if attached is None:
        return gradient
    if gradient is not None:
        raise ValueError(
            f"{name} has an attached gradient and a .grad; only one is allowed. Remove one: "
            "mg.attach_gradient(param, None) or param.grad = None"
        )
    return attached


def replace_gradient(param: Tensor, gradient: AnyGradient) -> None:
    """Replace the current gradient by ``gradient``, in ``.grad`` or attached, where ``.grad`` cannot hold it."""
    if attached_gradient(param) is not None or not isinstance(gradient, Tensor):
        keep_attached(param, gradient)
        return
    if param.grad is None or param.grad.dtype is not gradient.dtype:
        param.grad = None  # grad_dtype cannot be changed while there is a gradient
        set_grad_dtype(param, gradient.dtype)
        if grad_dtype(param) is not gradient.dtype:
            keep_attached(param, gradient)
            return
    param.grad = gradient


def grad_dtype(param: Tensor) -> torch.dtype | None:
    """The dtype in which ``param`` accumulates its gradient; None: any."""
    dtype: torch.dtype | None = param.grad_dtype if _HAS_GRAD_DTYPE else param.dtype
    return dtype


def set_grad_dtype(param: Tensor, dtype: torch.dtype | None) -> None:
    """Make ``param``, which must not have a ``.grad``, accumulate its gradient in ``dtype``, if PyTorch supports it."""
    if _HAS_GRAD_DTYPE:
        param.grad_dtype = dtype


class MaskedGradient(torch.Tensor):
    """Type of ``param.grad`` if the gradient is masked; ``gradient`` is a MaskedTensor or sparse tensor.

    Entries without a gradient count as 0 in norms and checks, and scaling does not change that, so that
    ``torch.nn.utils.clip_grad_norm_``, ``torch.amp.GradScaler`` and ``zero_grad`` are right. ``to_dense()`` makes a
    plain tensor. Everything else raises a RuntimeError, steps of torch.optim before any change.
    """

    gradient: Any
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, gradient: Any) -> MaskedGradient:
        """Return a tensor without its own memory, around ``gradient``."""
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
        """Move the wrapped gradient to shared memory; this tensor has no memory itself."""
        for tensor in tree_leaves(self.gradient):
            tensor.share_memory_()
        return self

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError(NOT_MASKED.format(where=_unnamed(self), who="DLPack"))

    def to_dense(self, *_: Any, **__: Any) -> Tensor:
        """A plain tensor, 0 where there is no gradient."""
        if isinstance(self.gradient, MaskedTensor):
            return self.gradient.to_dense().filled(0)
        return self.gradient.to_dense()  # type: ignore[no-any-return]

    def clean(self) -> MaskedGradient:
        """A merged copy, with zeros under the mask."""
        gradient = self.gradient
        if isinstance(gradient, MaskedTensor) and stored_of(gradient) is None:
            self.gradient = masked(gradient.filled(0), gradient._pattern.mask)
        return self

    def values(self) -> Tensor:
        """The tensor of the specified entries."""
        gradient = self.gradient
        return gradient._values if isinstance(gradient, MaskedTensor) else gradient.values()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        if packet in SAME:
            return args[0] if packet is aten.detach_ else MaskedGradient(args[0].gradient)
        if packet in COPYING:
            names = ("dtype", "device", "non_blocking")
            options = {name: kwargs[name] for name in names if kwargs.get(name)}
            return MaskedGradient(args[0].gradient.to(**options, copy=True))
        if packet in NORMS and _of_everything(args, kwargs):
            return func(*tree_map_only(MaskedGradient, _entries_and_a_zero, args), **kwargs)
        if packet in READING or packet in NORMS:
            return func(*tree_map_only(MaskedGradient, MaskedGradient.to_dense, args), **kwargs)
        if packet is UNSCALING:
            func(*tree_map_only(MaskedGradient, lambda g: g.clean().values(), args), **kwargs)
            return None
        if packet in (aten.zero_, aten._foreach_zero_):
            tree_map_only(MaskedGradient, lambda g: g.values().zero_(), args[0])
            return args[0] if packet is aten.zero_ else None
        if packet in SCALING and isinstance(args[0], (MaskedGradient, list, tuple)):
            adds_up = "clamp" not in packet.__name__  # several entries of one row
            read = MaskedGradient.values if adds_up else lambda g: g.clean().values()
            func(tree_map_only(MaskedGradient, read, args[0]), *args[1:], **kwargs)
            return args[0] if isinstance(args[0], MaskedGradient) else None
        first = next(a for a in tree_leaves((args, kwargs)) if isinstance(a, MaskedGradient))
        # no TypeError, for which Python would raise its own "unsupported operand"
        raise RuntimeError(NOT_MASKED.format(where=_unnamed(first), who=f"torch.{packet.__name__}"))


def _unnamed(gradient: MaskedGradient) -> str:
    return f"a parameter of shape {tuple(gradient.shape)}"


def _of_everything(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a norm is over the whole tensor."""
    dims = any(isinstance(a, (list, tuple)) and a for a in args[2:])
    return not (dims or kwargs.get("dim") or kwargs.get("keepdim") or True in args[2:])


def _entries_and_a_zero(gradient: MaskedGradient) -> Tensor:
    """Entries for a norm of all: one zero represents all missing gradients (which matters for orders below 0)."""
    values = MaskedGradient(gradient.gradient).clean().values()
    return values if len(values) == gradient.numel() else F.pad(values.reshape(-1), (0, 1))


class _DenseStepGuard(StepObserver):
    """Prevents steps with masked gradients in optimizers that use every entry of a gradient."""

    def gradients_ready(self, optimizer: Optimizer) -> None:
        if getattr(optimizer, "takes_masked_gradients", False):
            return
        for position, group in enumerate(optimizer.param_groups):
            for name, param in named(group, position):
                if isinstance(param.grad, MaskedGradient):
                    kind = type(optimizer)
                    place = "torch.optim" if kind.__module__.startswith("torch.optim.") else kind.__module__
                    where = f"{name}, of shape {tuple(param.shape)},"
                    raise RuntimeError(NOT_MASKED.format(where=where, who=f"{place}.{kind.__name__}"))


_GUARD = _DenseStepGuard()
