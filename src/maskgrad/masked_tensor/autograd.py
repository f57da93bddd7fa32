"""Autograd on MaskedTensors: leaves, gradients, hooks, backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor.creation import masked
from maskgrad.masked_tensor.tensor import MaskedTensor, stored_of
from maskgrad.patterns import BooleanPattern, Pattern, algebra
from maskgrad.semantics.callbacks import as_entries
from maskgrad.semantics.stored.conversion import cotangent

__all__ = ["AS_PARAMETER", "METHODS", "PROPERTIES", "as_values"]


def requires_grad_(self: MaskedTensor, requires_grad: bool = True) -> MaskedTensor:
    """Record operations on the values, in place."""
    self._values.requires_grad_(requires_grad)
    return self


def retain_grad(self: MaskedTensor) -> None:
    """Keep :attr:`grad` although this tensor is not a leaf."""
    self._values.retain_grad()


def _get_grad(self: MaskedTensor) -> MaskedTensor | None:
    """Gradient as a MaskedTensor with this tensor's pattern; None before the first backward."""
    grad = self._values.grad
    return None if grad is None else MaskedTensor(grad, borrowed(self._pattern))


def borrowed(pattern: Pattern) -> Pattern:
    return BooleanPattern(pattern.shared_mask()) if isinstance(pattern, BooleanPattern) else pattern


def _set_grad(self: MaskedTensor, grad: MaskedTensor | Tensor | None) -> None:
    self._values.grad = grad if grad is None else as_values(grad, self._pattern, self._values).detach()


def backward(
    self: MaskedTensor,
    gradient: MaskedTensor | Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Backpropagate from the specified entries; an unspecified scalar sends back zeros."""
    if gradient is None and self.shape.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    stored = stored_of(self)
    plain = self.filled(0) if stored is None else self._values
    if gradient is None:
        seed = torch.ones_like(plain)
    elif stored is None:
        seed = gradient.filled(0) if isinstance(gradient, MaskedTensor) else gradient
    else:
        seed = cotangent(stored, as_entries(gradient))
    if inputs is not None:
        inputs = [leaf._values if isinstance(leaf, MaskedTensor) else leaf for leaf in inputs]
    plain.backward(seed, retain_graph, create_graph, inputs=inputs)


def as_values(gradient: MaskedTensor | Tensor, pattern: Pattern, like: Tensor) -> Tensor:
    """Return a gradient in the storage of ``pattern``: on a sparse layout with the same pattern, or bare values."""
    if not isinstance(gradient, MaskedTensor):
        plain = gradient
    elif isinstance(pattern, BooleanPattern):
        plain = gradient.filled(0)
    else:
        if gradient._pattern.facts() != pattern.facts() or not algebra.equal(gradient._pattern, pattern):
            raise RuntimeError(
                f"the gradient of a MaskedTensor stored as {pattern.layout} must have its pattern, found another of "
                f"layout {gradient.layout} and shape {tuple(gradient.shape)}"
            )
        plain = gradient._values
    if plain.shape != like.shape:
        raise RuntimeError(f"the gradient must have shape {tuple(like.shape)}, found {tuple(plain.shape)}")
    return torch.where(pattern.mask, plain, 0) if isinstance(pattern, BooleanPattern) else plain


def register_hook(self: MaskedTensor, hook: Callable[[MaskedTensor], Any]) -> Any:
    """Call ``hook`` with the gradient, a MaskedTensor of this pattern; its result replaces the gradient.

    A leaf represents the tensor it was made from: the hook gets the gradients of all uses of that tensor, as
    ``.grad`` does. For a single use, register it on a view: ``x.view_as(x)``.
    """
    pattern = borrowed(self._pattern)  # of the current values, as in PyTorch's hooks

    def on_values(grad: Tensor) -> Tensor | None:
        changed = hook(MaskedTensor(grad, pattern))
        if changed is None:
            return None
        if not isinstance(changed, (MaskedTensor, torch.Tensor)):
            raise TypeError(f"a gradient hook must return a tensor or None, found {type(changed).__name__}")
        values = as_values(changed, pattern, grad)
        if isinstance(pattern, BooleanPattern):
            # Keep gradients of other uses of the plain tensor that x was made from.
            return torch.where(pattern.mask, values, grad)
        return values

    return self._values.register_hook(on_values)


def register_post_accumulate_grad_hook(self: MaskedTensor, hook: Callable[[MaskedTensor], None]) -> Any:
    """Call ``hook`` with this tensor, a leaf, once its gradient has been accumulated."""
    return self._values.register_post_accumulate_grad_hook(lambda _: hook(self))


def detach_(self: MaskedTensor) -> MaskedTensor:
    """Cut this tensor out of the graph, in place; the plain tensor it was made from stays in it."""
    self._rebind(self._values.detach(), borrowed(self._pattern))
    return self


AS_PARAMETER = (
    "a MaskedTensor cannot be a torch.nn.Parameter, which must be a torch.Tensor. Keep the values as a parameter and "
    "the mask as a buffer, self.weight = nn.Parameter(x.filled(0.)) and self.register_buffer('mask', x.mask), and "
    "use mg.masked(self.weight, self.mask) in forward()"
)
AS_BUFFER = (
    "a MaskedTensor cannot be a torch.nn.Buffer, which must be a torch.Tensor; "
    "use self.register_buffer(name, x), which accepts it"
)


def _get_data(self: MaskedTensor) -> MaskedTensor:
    """The same entries without a graph, in the same memory; autograd does not notice writes to them."""
    return MaskedTensor(self._values.data, self.detach()._pattern)


def _set_data(self: MaskedTensor, other: MaskedTensor | Tensor) -> None:
    source = masked(other)
    self._values.data, self._pattern = source._values.detach(), source.detach()._pattern


def _refused(name: str, words: str) -> property:
    """Return an attribute that only parameters and buffers have."""

    def read(self: MaskedTensor) -> Any:
        raise AttributeError(f"MaskedTensor has no attribute {name!r}", name=name, obj=self)

    def write(self: MaskedTensor, value: Any) -> None:
        raise TypeError(words)

    return property(read, write)


#: Attributes with the names of torch.Tensor's, put on the class by ``methods.py``.
METHODS = requires_grad_, retain_grad, backward, register_hook, register_post_accumulate_grad_hook, detach_
PROPERTIES = {
    "requires_grad": property(lambda self: self._values.requires_grad, requires_grad_),  # type: ignore[arg-type]
    "grad": property(_get_grad, _set_grad, doc=_get_grad.__doc__),
    "data": property(_get_data, _set_data, doc=_get_data.__doc__),
    "_is_param": _refused("_is_param", AS_PARAMETER),
    "persistent": _refused("persistent", AS_BUFFER),
}
