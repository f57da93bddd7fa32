"""Comparison of gradients with finite differences over the specified entries; exactly zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from maskgrad.gradients.checked_entries import Input, entries_of_outputs, inputs_of
from maskgrad.gradients.jacobians import Comparison
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["gradcheck", "gradgradcheck"]


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
) -> bool:
    r"""Compare the gradients of ``func`` with differences :math:`(f(x + \epsilon) - f(x - \epsilon)) / 2\epsilon`.

    Only specified entries are perturbed, and only specified results are compared. A gradient that is not exactly 0
    outside the pattern of an input is an error; ``torch.autograd.gradcheck`` with ``masked=True`` does not check this.

    Args:
        func: takes ``inputs``; returns tensors, MaskedTensors or sparse tensors of torch, one or a tuple.
        inputs: one argument or a tuple of them. Those that require a gradient are checked: strided tensors,
            MaskedTensors of any layout, sparse tensors of torch (COO, CSR, CSC, BSR, BSC; each index is perturbed
            once). They must be float64 or complex128: differences of float32 are too coarse.
        eps: size of the finite differences.
        atol: absolute tolerance.
        rtol: relative tolerance.
        raise_exception: False: return False instead of raising GradcheckError.
        nondet_tol: largest difference of two backward passes through the same graph.
        check_undefined_grad: check undefined gradients of results (None) as well.
        check_grad_dtypes: the gradient must have the dtype of its input.
        check_batched_grad: check ``torch.func.vmap`` over the backward pass.
        check_batched_forward_grad: check ``torch.func.vmap`` over tangents.
        check_forward_ad: check forward mode.
        check_backward_ad: check the backward pass.
        fast_mode: compare one random combination of all entries first, and each entry only if that differs.

    Returns:
        True.

    Raises:
        GradcheckError: (a ``RuntimeError``) names the input and its entry, the output and its entry, and both values.
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
        comparison = Comparison(func, arguments, checked, eps, atol, rtol, nondet_tol, check_grad_dtypes)
        problem = comparison.problem(fast_mode) if check_backward_ad else None
        if problem is not None:
            raise GradcheckError(f"gradcheck: {problem}")
        # torch's own checks, on the specified entries only.
        if check_undefined_grad or check_batched_grad or check_forward_ad or check_batched_forward_grad:
            torch.autograd.gradcheck(
                _on_entries(func, arguments, checked),
                tuple(c.entries().detach().requires_grad_() for c in checked),
                eps=eps,
                atol=atol,
                rtol=rtol,
                nondet_tol=nondet_tol,
                check_undefined_grad=check_undefined_grad and check_backward_ad,
                check_batched_grad=check_batched_grad and check_backward_ad,
                check_batched_forward_grad=check_batched_forward_grad,
                check_forward_ad=check_forward_ad,
                check_backward_ad=check_backward_ad,
                fast_mode=True,  # all entries have been compared
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
    **options: Any,
) -> bool:
    r"""Check second derivatives: :func:`gradcheck` of the gradient as a function of inputs and cotangents.

    Args:
        func: as for :func:`gradcheck`; its backward must be differentiable.
        inputs: as for :func:`gradcheck`.
        grad_outputs: one tensor for each differentiable result, with one value per specified entry in the order of
            storage (row-major for masks). None: random numbers.
        **options: keyword arguments of :func:`gradcheck`.

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
    on_entries = _on_entries(func, arguments, checked, whole=True)
    points = [c.point.detach().requires_grad_() for c in checked]
    results = on_entries(*points)
    if grad_outputs is None:
        generator = torch.Generator().manual_seed(0)
        cotangents = [
            torch.randn(r.shape, dtype=r.dtype, generator=generator).to(r.device).requires_grad_()
            for r in results
        ]
    else:
        given = grad_outputs if isinstance(grad_outputs, (tuple, list)) else (grad_outputs,)
        if len(given) != len(results) or any(
            g.numel() != r.numel() for g, r in zip(given, results, strict=True)
        ):
            raise ValueError(
                f"grad_outputs must have one value for each specified entry of each result, "
                f"{[r.numel() for r in results]}, found {[g.numel() for g in given]}"
            )
        cotangents = [
            g.detach().reshape(r.shape).clone().requires_grad_() for g, r in zip(given, results, strict=True)
        ]

    def first(*parts: Any) -> tuple[Any, ...]:
        with torch.enable_grad():
            points = [p._values if isinstance(p, MaskedTensor) else p for p in parts[: len(checked)]]
            points = [p if p.requires_grad else p.view_as(p).requires_grad_() for p in points]
            grads = torch.autograd.grad(
                on_entries(*points),
                points,
                tuple(parts[len(checked) :]),
                create_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        return tuple([c.with_pattern(g) for c, g in zip(checked, grads, strict=True)])

    return gradcheck(
        first, (*[c.with_pattern(c.point.clone().requires_grad_()) for c in checked], *cotangents), **options
    )


def _on_entries(
    func: Callable[..., Any], arguments: tuple[Any, ...], checked: list[Input], whole: bool = False
) -> Callable[..., tuple[Tensor, ...]]:
    """Return ``func`` from the specified entries of its inputs (or their whole storage) to those of its results."""

    def on_entries(*entries: Tensor) -> tuple[Tensor, ...]:
        filled = list(arguments)
        for c, part in zip(checked, entries, strict=True):
            filled[c.position] = c.argument(part if whole else c.placed(part))
        return tuple([e for _, e in entries_of_outputs(func(*filled))])

    return on_entries
