"""torch.autograd.gradcheck over the specified entries; gradients are exactly zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from maskgrad.gradients.checked_entries import Input, entries_of_outputs, inputs_of

__all__ = ["gradcheck", "gradgradcheck"]


def gradcheck(func: Callable[..., Any], inputs: Any, *, raise_exception: bool = True, **options: Any) -> bool:
    r"""Compare the gradients of ``func`` with differences :math:`(f(x + \epsilon) - f(x - \epsilon)) / 2\epsilon`.

    ``torch.autograd.gradcheck`` of the function from the specified entries of the inputs to those of the results. A
    gradient that is not exactly 0 outside the pattern of an input is an error; PyTorch's ``masked=True`` does not check
    this.

    Args:
        func: takes ``inputs``; returns tensors, MaskedTensors or sparse tensors of torch, one or a tuple.
        inputs: one argument or a tuple of them. Those that require a gradient are checked: strided tensors,
            MaskedTensors of any layout, sparse tensors of torch (COO, CSR, CSC, BSR, BSC). They must be float64 or
            complex128: differences of float32 are too coarse.
        raise_exception: False: return False instead of raising GradcheckError.
        **options: keyword arguments of ``torch.autograd.gradcheck``: ``eps``, ``atol``, ``rtol``, ``fast_mode``,
            ``check_forward_ad``, ``check_batched_grad``, ….

    Returns:
        True.

    Raises:
        GradcheckError: (a ``RuntimeError``) a derivative is wrong, or a gradient outside the pattern is not 0.
            PyTorch's message counts the checked inputs, and their specified entries in the order of storage.
        ValueError: no input requires a gradient, or no result depends on one.
        TypeError: an input that requires a gradient is in single or half precision.

    Example:
        >>> x = torch.tensor([1.0, float("nan"), 4.0], dtype=torch.float64, requires_grad=True)
        >>> mg.gradcheck(torch.log, mg.masked(x, torch.tensor([True, False, True])))
        True

    Source: https://docs.pytorch.org/docs/stable/generated/torch.autograd.gradcheck.gradcheck.html (the arguments).
    """
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    checked = inputs_of(arguments)
    try:
        if options.get("check_backward_ad", True):
            _check_outside(func, arguments, checked)
        torch.autograd.gradcheck(
            _on_entries(func, arguments, checked), [c.entries() for c in checked], **options
        )
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


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
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    checked = inputs_of(arguments)
    on_entries, entries = _on_entries(func, arguments, checked), [c.entries() for c in checked]
    if grad_outputs is not None:
        given = grad_outputs if isinstance(grad_outputs, (tuple, list)) else (grad_outputs,)
        sizes, found = [r.numel() for r in on_entries(*entries)], [g.numel() for g in given]
        if sizes != found:
            raise ValueError(
                f"grad_outputs must have one value for each specified entry of each result, {sizes}, found {found}"
            )
        grad_outputs = [g.detach().reshape(-1).clone().requires_grad_() for g in given]
    try:
        if not any(c.sparse for c in checked):  # PyTorch has no second derivatives through its sparse tensors
            _check_outside(func, arguments, checked, second=True)
        torch.autograd.gradgradcheck(on_entries, entries, grad_outputs, **options)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _on_entries(
    func: Callable[..., Any], arguments: tuple[Any, ...], checked: list[Input]
) -> Callable[..., tuple[Tensor, ...]]:
    """Return ``func`` from the specified entries of its inputs to those of its results."""
    sizes: list[list[int]] = []

    def on_entries(*entries: Tensor) -> tuple[Tensor, ...]:
        filled = list(arguments)
        for c, part in zip(checked, entries, strict=True):
            filled[c.position] = c.with_entries(part)
        results = entries_of_outputs(func(*filled))
        sizes.append([r.numel() for r in results])
        if sizes[-1] != sizes[0]:
            raise ValueError(
                f"gradcheck: the results had {sizes[0]} specified entries, and {sizes[-1]} when an input changed by "
                "eps; a pattern must be constant"
            )
        return tuple(results)

    return on_entries


def _check_outside(
    func: Callable[..., Any], arguments: tuple[Any, ...], checked: list[Input], *, second: bool = False
) -> None:
    """Raise an error if a gradient (or one of the gradients' gradients) outside the pattern of an input is not 0."""
    filled, targets = list(arguments), []
    for c in checked:
        filled[c.position], target = c.leaf()
        targets.append(target)
    results = [r for r in entries_of_outputs(func(*filled)) if r.requires_grad]
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
        for at, value in [] if gradient is None else c.outside(gradient):
            raise GradcheckError(
                f"gradcheck: the gradient must be exactly 0 outside the pattern of {c.name}, found {value} at entry "
                f"{tuple(at)}"
            )


def _gradients(
    results: list[Tensor], targets: list[Tensor], *, create_graph: bool = False
) -> tuple[Tensor | None, ...]:
    generator = torch.Generator().manual_seed(0)
    cotangents = [torch.randn(r.shape, dtype=r.dtype, generator=generator).to(r.device) for r in results]
    return torch.autograd.grad(results, targets, cotangents, create_graph=create_graph, allow_unused=True)
