"""The part of a tensor's interface that speaks to autograd: leaves, gradients, hooks, backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.masked_tensor.tensor import MaskedTensor, stored_of
from maskgrad.patterns import BooleanPattern, Pattern, algebra
from maskgrad.semantics.callbacks import as_entries
from maskgrad.semantics.sparse.conversion import cotangent

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["as_values", "install"]


def requires_grad_(self: MaskedTensor, requires_grad: bool = True) -> MaskedTensor:
    """Record operations on the values from now on, in place."""
    self._values.requires_grad_(requires_grad)
    return self


def _set_requires_grad(self: MaskedTensor, requires_grad: bool) -> None:
    self._values.requires_grad = requires_grad


def retain_grad(self: MaskedTensor) -> None:
    """Keep :attr:`grad` although this tensor is not a leaf."""
    self._values.retain_grad()


def _get_grad(self: MaskedTensor) -> MaskedTensor | None:
    """The gradient as a MaskedTensor with this tensor's pattern; None before the first backward."""
    grad = self._values.grad
    return None if grad is None else MaskedTensor(grad, borrowed(self._pattern))


def borrowed(pattern: Pattern) -> Pattern:
    """The same entries for other values."""
    return pattern.borrowed() if isinstance(pattern, BooleanPattern) else pattern


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
    leaves = (
        [leaf._values if isinstance(leaf, MaskedTensor) else leaf for leaf in inputs]
        if inputs is not None
        else None
    )
    plain.backward(seed, retain_graph, create_graph, inputs=leaves)


def as_values(gradient: MaskedTensor | Tensor, pattern: Pattern, like: Tensor) -> Tensor:
    """A gradient in the storage of ``pattern``: on a sparse layout one of the same pattern, or the bare values."""
    if isinstance(pattern, BooleanPattern):
        plain = gradient.filled(0) if isinstance(gradient, MaskedTensor) else gradient
        expected = like.shape
    elif isinstance(gradient, MaskedTensor):
        if gradient._pattern.facts() != pattern.facts() or not algebra.equal(gradient._pattern, pattern):
            raise RuntimeError(
                f"the gradient of a MaskedTensor stored as {pattern.layout} must have its pattern, found another of "
                f"layout {gradient.layout} and shape {tuple(gradient.shape)}"
            )
        plain, expected = gradient._values, like.shape
    else:
        plain, expected = gradient, like.shape
    if plain.shape != expected:
        raise RuntimeError(f"the gradient must have shape {tuple(expected)}, found {tuple(plain.shape)}")
    return torch.where(pattern.mask, plain, 0) if isinstance(pattern, BooleanPattern) else plain


def register_hook(self: MaskedTensor, hook: Callable[[MaskedTensor], Any]) -> Any:
    """Call ``hook`` with the gradient, a MaskedTensor of this pattern; what it returns replaces the gradient.

    A leaf is the tensor that it was made of: the hook sees what all uses of that tensor send to these entries, as
    ``.grad`` does. For one use alone, register it on a view: ``x.view_as(x)``.
    """
    pattern = self._pattern

    def on_values(grad: Tensor) -> Tensor | None:
        changed = hook(MaskedTensor(grad, pattern))
        if changed is None:
            return None
        if not isinstance(changed, (MaskedTensor, torch.Tensor)):
            raise TypeError(f"a gradient hook must return a tensor or None, found {type(changed).__name__}")
        values = as_values(changed, pattern, grad)
        if isinstance(pattern, BooleanPattern):
            # The plain tensor that x was made of may have other uses: what they send elsewhere is not x's to change.
            return torch.where(pattern.mask, values, grad)
        return values

    return self._values.register_hook(on_values)


def register_post_accumulate_grad_hook(self: MaskedTensor, hook: Callable[[MaskedTensor], None]) -> Any:
    """Call ``hook`` with this tensor once its gradient has been accumulated.

    Raises:
        RuntimeError: this tensor is no leaf; nothing accumulates there.
    """
    if not self._values.is_leaf:
        raise RuntimeError(
            "post accumulate grad hooks cannot be registered on a MaskedTensor that is no leaf: nothing accumulates "
            "there. Register the hook on the leaf it was made of, or use register_hook"
        )
    return self._values.register_post_accumulate_grad_hook(lambda _: hook(self))


def detach_(self: MaskedTensor) -> MaskedTensor:
    """Cut this tensor out of the graph, in place; the plain tensor it was made from stays in."""
    self._rebind(self._values.detach(), borrowed(self._pattern))
    return self


def install() -> None:
    """Put these methods on MaskedTensor."""
    for method in (
        requires_grad_,
        retain_grad,
        backward,
        register_hook,
        register_post_accumulate_grad_hook,
        detach_,
    ):
        setattr(MaskedTensor, method.__name__, method)
    known: property = MaskedTensor.__dict__["requires_grad"]
    MaskedTensor.requires_grad = known.setter(_set_requires_grad)  # type: ignore[attr-defined]
    MaskedTensor.grad = property(_get_grad, _set_grad, doc=_get_grad.__doc__)  # type: ignore[attr-defined]
