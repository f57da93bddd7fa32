"""torch.autograd.gradcheck over the specified entries; gradients are exactly zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.patterns import Pattern, StoredPattern

__all__ = ["gradcheck", "gradgradcheck"]


def gradcheck(func: Callable[..., Any], inputs: Any, *, raise_exception: bool = True, **options: Any) -> bool:
    r"""Compare the gradients of ``func`` with differences :math:`(f(x + \epsilon) - f(x - \epsilon)) / 2\epsilon`.

    ``torch.autograd.gradcheck`` of the function from the specified entries of the inputs to those of the results. A
    gradient that is not exactly 0 outside the pattern of an input is an error; PyTorch's ``masked=True`` does not check
    this.

    Args:
        func: takes ``inputs``; returns tensors, MaskedTensors or sparse tensors of torch, one or a tuple.
        inputs: one argument or a tuple of them. Those that require a gradient are checked: strided tensors and
            MaskedTensors of any layout. They must be float64 or complex128: differences of float32 are too coarse.
        raise_exception: False: return False instead of raising GradcheckError.
        **options: keyword arguments of ``torch.autograd.gradcheck``: ``eps``, ``atol``, ``rtol``, ``fast_mode``,
            ``check_forward_ad``, ``check_batched_grad``, ….

    Returns:
        True.

    Raises:
        GradcheckError: (a ``RuntimeError``) a derivative is wrong, or a gradient outside the pattern is not 0.
            PyTorch's message counts the checked inputs, and their specified entries in the order of storage.
        ValueError: no input requires a gradient, or no result depends on one.
        TypeError: an input that requires a gradient is in single or half precision, or a sparse tensor of torch.

    Example:
        >>> x = torch.tensor([1.0, float("nan"), 4.0], dtype=torch.float64, requires_grad=True)
        >>> mg.gradcheck(torch.log, mg.masked(x, torch.tensor([True, False, True])))
        True

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html (the arguments).
    """
    return _passes(torch.autograd.gradcheck, func, inputs, (), raise_exception, options)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    raise_exception: bool = True,
    **options: Any,
) -> bool:
    r"""Check second derivatives: :func:`gradcheck` of the gradient as a function of inputs and cotangents.

    Args:
        func: as for :func:`gradcheck`; its backward must be differentiable.
        inputs: as for :func:`gradcheck`.
        grad_outputs: one tensor for each differentiable result, with one value per specified entry in the order of
            storage (row-major for masks). None: random numbers.
        raise_exception: False: return False instead of raising GradcheckError.
        **options: keyword arguments of ``torch.autograd.gradgradcheck``.

    Returns:
        True.

    Raises:
        GradcheckError: as :func:`gradcheck`.

    Example:
        >>> x = torch.tensor([1.0, float("nan"), 4.0], dtype=torch.float64, requires_grad=True)
        >>> mg.gradgradcheck(torch.log, mg.masked(x, torch.tensor([True, False, True])))
        True
    """
    return _passes(
        torch.autograd.gradgradcheck, func, inputs, (grad_outputs,), raise_exception, options, second=True
    )


def _passes(
    check: Callable[..., Any],
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: tuple[Any, ...],
    raise_exception: bool,
    options: dict[str, Any],
    second: bool = False,
) -> bool:
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    checked = _inputs_of(arguments)
    try:
        if options.get("check_backward_ad", True):
            _check_outside(func, arguments, checked, second)
        check(_on_entries(func, arguments, checked), [c.entries() for c in checked], *grad_outputs, **options)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


class _Input(NamedTuple):
    """One argument that requires a gradient."""

    position: int
    point: Tensor
    """The plain tensor of its values: the data of a mask, stored values, or the tensor itself."""
    pattern: Pattern | None
    specified: Tensor | None
    """Index of the specified entries in the flat point; None: all."""

    def entries(self) -> Tensor:
        """Return a leaf with the specified values, (n,)."""
        return self.inside(self.point).clone().requires_grad_()

    def inside(self, values: Tensor) -> Tensor:
        """Return the specified entries of ``values``, (n,)."""
        flat = values.reshape(-1)
        return flat if self.specified is None else flat[self.specified]

    def with_entries(self, entries: Tensor) -> Any:
        """Return the argument with these entries; values under its mask are unchanged."""
        if self.specified is not None:
            entries = self.point.reshape(-1).index_put((self.specified,), entries)
        return self.argument(entries.reshape(self.point.shape))

    def argument(self, point: Tensor) -> Any:
        """Return the argument of the function with other values."""
        return point if self.pattern is None else MaskedTensor(point, self.pattern)


def _inputs_of(arguments: tuple[Any, ...]) -> list[_Input]:
    """Return the arguments that require a gradient: at least one, in double precision."""
    found = []
    for position, argument in enumerate(arguments):
        if not isinstance(argument, (Tensor, MaskedTensor)) or not argument.requires_grad:
            continue
        if argument.dtype not in (torch.float64, torch.complex128):
            raise TypeError(
                f"gradcheck: input {position} must have dtype torch.float64 or torch.complex128, for finite "
                f"differences to be precise, found {argument.dtype}; use .double()"
            )
        if isinstance(argument, Tensor) and argument.layout is not torch.strided:
            raise TypeError(
                f"gradcheck: input {position} is a sparse tensor of layout {argument.layout}; write "
                "mg.from_sparse(x.detach()).requires_grad_(), or torch.autograd.gradcheck(func, x, masked=True)"
            )
        pattern, specified = None, None
        if isinstance(argument, MaskedTensor):
            pattern = argument._pattern
            if not isinstance(pattern, StoredPattern):
                specified = pattern.mask.reshape(-1).nonzero().squeeze(1)
        values = argument if isinstance(argument, Tensor) else argument._values
        point = values.detach().clone(memory_format=torch.contiguous_format)
        found.append(_Input(position, point, pattern, specified))
    if not found:
        raise ValueError(
            "gradcheck needs an input that requires a gradient, found none; use x.requires_grad_() before"
        )
    return found


def _entries_of_outputs(outputs: Any) -> list[Tensor]:
    """Return the specified entries (n,) of each floating-point result; at least one."""
    found = [
        _entries(output)
        for output in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))
        if isinstance(output, (Tensor, MaskedTensor))
        and (output.dtype.is_floating_point or output.dtype.is_complex)
    ]
    if not found:
        raise ValueError("gradcheck: no result is a floating-point tensor")
    return found


def _entries(output: Tensor | MaskedTensor) -> Tensor:
    if not isinstance(output, MaskedTensor):
        return output.to_dense().reshape(-1)
    stored = stored_of(output)
    specified: Tensor = output._values[output.mask] if stored is None else stored.values.reshape(-1)
    return specified


def _on_entries(
    func: Callable[..., Any], arguments: tuple[Any, ...], checked: list[_Input]
) -> Callable[..., tuple[Tensor, ...]]:
    """Return ``func`` from the specified entries of its inputs to those of its results."""
    sizes: list[list[int]] = []

    def on_entries(*entries: Tensor) -> tuple[Tensor, ...]:
        filled = list(arguments)
        for c, part in zip(checked, entries, strict=True):
            filled[c.position] = c.with_entries(part)
        results = _entries_of_outputs(func(*filled))
        sizes.append([r.numel() for r in results])
        if sizes[-1] != sizes[0]:
            raise ValueError(
                f"gradcheck: the results had {sizes[0]} specified entries, and {sizes[-1]} when an input changed by "
                "eps; a pattern must be constant"
            )
        return tuple(results)

    return on_entries


def _check_outside(
    func: Callable[..., Any], arguments: tuple[Any, ...], checked: list[_Input], second: bool
) -> None:
    """Raise an error if a gradient (or one of the gradients' gradients) outside the pattern of an input is not 0."""
    filled = list(arguments)
    targets = [c.point.clone().requires_grad_() for c in checked]
    for c, target in zip(checked, targets, strict=True):
        filled[c.position] = c.argument(target)
    results = [r for r in _entries_of_outputs(func(*filled)) if r.requires_grad]
    if not results:
        raise ValueError("gradcheck: no result depends on an input that requires a gradient")
    gradients = _gradients(results, targets, create_graph=second)
    if second:
        first = [c.inside(g) for c, g in zip(checked, gradients, strict=True) if g is not None]
        first = [g for g in first if g.requires_grad]
        if not first:  # the gradient is constant
            return
        gradients = _gradients(first, targets)
    for c, gradient in zip(checked, gradients, strict=True):
        if gradient is None or c.specified is None:
            continue
        rest = gradient.detach().reshape(-1).index_fill(0, c.specified, 0).reshape(c.point.shape)
        for at in (rest != 0).nonzero()[:1].tolist():  # NaN != 0
            raise GradcheckError(
                f"gradcheck: the gradient must be exactly 0 outside the pattern of input {c.position} "
                f"(MaskedTensor), found {rest[tuple(at)].item()} at entry {tuple(at)}"
            )


def _gradients(
    results: list[Tensor], targets: list[Tensor], *, create_graph: bool = False
) -> tuple[Tensor | None, ...]:
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(r.shape, dtype=r.dtype, generator=generator).to(r.device) for r in results]
    return torch.autograd.grad(results, targets, cotangents, create_graph=create_graph, allow_unused=True)
