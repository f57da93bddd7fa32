"""Functions with custom derivatives, for plain tensors and MaskedTensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.dispatch import unwrap, wrap
from maskgrad.masked_tensor.tensor import of_entries
from maskgrad.mode import TRACED, mode
from maskgrad.semantics.entries import Entries, fill, intersection, mask_of
from maskgrad.semantics.stored import elementwise
from maskgrad.semantics.stored.entries import StoredEntries

__all__ = ["Function"]

#: methods and attributes that torch.autograd.Function reads from a class
PARTS = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap", "generate_vmap_rule")


class Function:
    r"""``torch.autograd.Function`` that also accepts MaskedTensors, and declares the pattern of its results.

    :math:`y = f(x)` with a gradient that you write. A subclass defines static methods exactly as the functions of
    torch that have a ``setup_context`` do: ``forward(*inputs)``, ``setup_context(ctx, inputs, output)`` (may be
    omitted), ``backward(ctx, *gradients)``, and optionally ``jvp(ctx, *tangents)`` and ``vmap(info, in_dims,
    *inputs)``. They see plain tensors only. ``ctx`` is torch's: ``save_for_backward``, ``save_for_forward``,
    ``needs_input_grad``, ``mark_non_differentiable``, ``set_materialize_grads``; inputs that are not tensors are
    constants, whose gradient is None; intermediate results that second derivatives need can be returned as further
    outputs. A rule for ``torch.func.vmap`` is generated if there is no ``vmap``.

    Attributes:
        pattern: the specified entries of the results, if an operand is masked. ``"intersection"``: the function works
            entry by entry, and a result is specified where all operands are (any layout; on sparse ones the cost
            depends on stored entries only). A static method ``pattern(*inputs)``, which gets a Boolean mask in place
            of every tensor and returns the mask of the result, for several results a tuple; None means fully
            specified, and gives a plain tensor. None, the default: MaskedTensors raise an error.
        filler: value of unspecified entries in ``forward``: a number at which function and derivative are finite
            (1 for a logarithm).
        generate_vmap_rule: False if ``forward`` cannot be vectorised by ``torch.func.vmap``.
        plain: the ``torch.autograd.Function`` behind it.

    Gradient: the result of ``backward`` at specified entries; exactly 0 at the others. As often differentiable as
    ``backward`` is.

    Raises:
        TypeError: in the class definition: ``forward`` takes a ``ctx``, or ``pattern`` is invalid. When it
            is applied: a MaskedTensor, and no ``pattern``.
        UnsupportedLayoutError: a sparse layout, and a pattern other than ``"intersection"``.
        RuntimeError: the shapes of a result and of its mask differ.

    Dense equivalent: :class:`torch.autograd.Function` on the specified entries.

    Example:
        >>> class Cube(mg.Function):
        ...     pattern = "intersection"
        ...
        ...     @staticmethod
        ...     def forward(x):
        ...         return x**3
        ...
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         ctx.save_for_backward(*inputs)
        ...
        ...     @staticmethod
        ...     def backward(ctx, gradient):
        ...         (x,) = ctx.saved_tensors
        ...         return 3 * x**2 * gradient
        >>> x = torch.tensor([1.0, float("nan"), 2.0], requires_grad=True)
        >>> y = Cube.apply(mg.masked(x, torch.tensor([True, False, True])))
        >>> y
        masked([1., --, 8.], grad_fn=<CubeBackward>)
        >>> y.sum().backward()
        >>> x.grad
        tensor([ 3.,  0., 12.])

    Source: https://docs.pytorch.org/docs/stable/notes/extending.func.html (structure of a function).
    """

    pattern: ClassVar[str | Callable[..., Any] | None] = None
    filler: ClassVar[float] = 0
    generate_vmap_rule: ClassVar[bool] = True
    plain: ClassVar[type[torch.autograd.Function]]
    _traced: ClassVar[type[torch.autograd.Function]]
    forward: ClassVar[Callable[..., Any]]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save in ``ctx`` the tensors that ``backward`` and ``jvp`` need; saves nothing unless overridden."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        forward = getattr(cls, "forward", None)
        if forward is None:  # a base class
            return
        name = cls.__name__
        if next(iter(inspect.signature(forward).parameters), None) == "ctx":
            raise TypeError(
                f"{name}.forward must take the inputs only, found a first argument ctx; move the use of ctx to a "
                "static method setup_context(ctx, inputs, output)"
            )
        pattern = cls.pattern
        if not (pattern is None or callable(pattern) or pattern == "intersection"):
            raise TypeError(
                f"{name}.pattern must be 'intersection', a static method or None, found {pattern!r}; that of the first "
                "operand is pattern = staticmethod(lambda mask, *others: mask)"
            )
        parts = {part: inspect.getattr_static(cls, part) for part in PARTS if hasattr(cls, part)}
        if "vmap" in parts:
            parts["generate_vmap_rule"] = False
        cls.plain = type(name, (torch.autograd.Function,), {**parts, "__module__": cls.__module__})
        # torch.compile does not trace a class with a jvp, even if unused, and finds backward by one name only
        parts.pop("jvp", None)
        if "vjp" in parts:
            parts["backward"] = parts.pop("vjp")
        cls._traced = type(name, (torch.autograd.Function,), {**parts, "__module__": cls.__module__})

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Apply the function.

        Args:
            *args: arguments of ``forward``; tensors may be masked.
            **kwargs: keyword arguments of ``forward``.

        Returns:
            The results of ``forward``, as MaskedTensors if an operand is one and their pattern is not None.
        """
        if kwargs:
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        masked = False
        for argument in args:
            masked = masked or isinstance(argument, MaskedTensor)
        return _applied_to_masked(cls, args) if masked else _run(cls, *args)


def _run(cls: type[Function], *args: Any) -> Any:
    """Apply the function to plain arguments."""
    return (cls._traced if mode() in TRACED else cls.plain).apply(*args)


def _applied_to_masked(cls: type[Function], args: tuple[Any, ...]) -> Any:
    pattern: Any = cls.pattern
    if pattern is None:
        raise TypeError(
            f"{cls.__name__} got a MaskedTensor, but declares no pattern; set the class attribute "
            "pattern = 'intersection' if it is elementwise, a static method pattern(*masks) otherwise, or pass "
            "x.filled(value)"
        )
    operands: list[Any] = [unwrap(a, []) if isinstance(a, MaskedTensor) else a for a in args]
    entry_by_entry = pattern == "intersection"
    for stored in operands:
        if isinstance(stored, StoredEntries) and entry_by_entry:
            # All stored values are specified; others are aligned.
            return wrap(elementwise.apply(lambda values: _checked(cls, values, _run(cls, *values)), operands))
        if isinstance(stored, StoredEntries):
            raise UnsupportedLayoutError(
                f"{cls.__name__} (pattern of its own)", stored.pattern.layout, tuple(stored.shape)
            )
    if entry_by_entry:
        common = intersection(operands)
        safe = [
            fill(o, common, cls.filler) if isinstance(o, (Entries, Tensor)) and common is not None else o
            for o in operands
        ]
        return _attached(cls, _checked(cls, safe, _run(cls, *safe)), common)
    safe = [fill(o, o.mask, cls.filler) if isinstance(o, Entries) else o for o in operands]
    masks = [
        o.mask if isinstance(o, Entries) else mask_of(o) if isinstance(o, Tensor) else o for o in operands
    ]
    return _attached(cls, _run(cls, *safe), pattern(*masks))


def _checked(cls: type[Function], values: list[Any], result: Any) -> Any:
    """Check the shape of the result of an elementwise function; raise a RuntimeError if it is wrong."""
    shape = torch.broadcast_shapes(*[v.shape for v in values if isinstance(v, Tensor)])
    for part in result if isinstance(result, tuple) else (result,):
        if isinstance(part, Tensor) and part.shape != shape:
            raise RuntimeError(
                f"{cls.__name__} declares pattern 'intersection' (elementwise), but returned shape "
                f"{tuple(part.shape)} from operands that broadcast to {tuple(shape)}; declare "
                "a static method pattern(*masks) that returns the mask of the result"
            )
    return result


def _attached(cls: type[Function], result: Any, declared: Any) -> Any:
    """Return every tensor in the result with its mask."""
    if not isinstance(result, tuple):
        return _with_mask(cls, result, declared)
    masks = declared if isinstance(declared, tuple) else (declared,) * len(result)
    if len(masks) != len(result):
        raise RuntimeError(
            f"{cls.__name__}.pattern must return one mask for each of {len(result)} results, found {len(masks)}"
        )
    parts = [_with_mask(cls, part, mask) for part, mask in zip(result, masks, strict=True)]
    return tuple(parts) if type(result) is tuple else type(result)(*parts)


def _with_mask(cls: type[Function], part: Any, mask: Any) -> Any:
    if mask is None or not isinstance(part, Tensor):
        return part
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{cls.__name__}.pattern must return Boolean tensors or None, found {found}")
    if mask.shape != part.shape:
        try:
            mask = mask.expand(part.shape)
        except RuntimeError:
            raise RuntimeError(
                f"{cls.__name__}.pattern: a mask of shape {tuple(mask.shape)} does not fit the "
                f"result, of shape {tuple(part.shape)}; declare a static method pattern(*masks) that "
                "returns the mask of the result"
            ) from None
    return of_entries(part, mask)
