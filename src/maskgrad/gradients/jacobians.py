"""Jacobians over specified entries, by finite differences and by backward passes, and where the two differ.

Complex numbers count as two real ones: the derivative of the real and of the imaginary part of a result with respect
to the real and the imaginary part of an entry are four numbers. torch's gradient of a real function L of z = a + ib is
dL/da + i dL/db.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.checked_entries import Input, entries_of_outputs, place_in

__all__ = ["compare"]

Function = Callable[..., Any]


def compare(
    func: Function,
    arguments: tuple[Any, ...],
    checked: list[Input],
    eps: float,
    atol: float,
    rtol: float,
    nondet_tol: float,
    check_dtypes: bool,
    fast: bool,
    backward: bool = True,
) -> str | None:
    """The first thing that is wrong with the backward pass of ``func``, or None."""
    if not backward:
        return None
    outputs, leaves = _forward(func, arguments, checked)
    entries = entries_of_outputs(outputs)
    if not any(e.requires_grad for _, e in entries):
        raise ValueError("gradcheck: no result depends on an input that requires a gradient")
    if fast:
        agreed, problem = _compare_one_combination(
            func, arguments, checked, entries, leaves, eps, atol, rtol, check_dtypes
        )
        if agreed or problem is not None:
            return problem
    rows: list[list[Tensor]] = [[] for _ in checked]
    for number, (output, result) in enumerate(entries):
        for direction in range(result.numel() * _parts(result)):
            grads = _vjp(result, leaves, _basis(result, direction))
            problem = _outside_or_wrong_dtype(checked, grads, number, output, direction, check_dtypes)
            if problem is not None:
                return problem
            analytic = [_inside(c, g) for c, g in zip(checked, grads, strict=True)]
            if direction == 0 and number == 0:
                again = [
                    _inside(c, g)
                    for c, g in zip(checked, _vjp(result, leaves, _basis(result, 0)), strict=True)
                ]
                problem = _nondeterministic(checked, analytic, again, nondet_tol)
                if problem is not None:
                    return problem
            for row, of in zip(analytic, rows, strict=True):
                of.append(row)
    return _compare_all(func, arguments, checked, rows, entries, eps, atol, rtol)


def _forward(func: Function, arguments: tuple[Any, ...], checked: list[Input]) -> tuple[Any, list[Tensor]]:
    filled, leaves = list(arguments), []
    for c in checked:
        filled[c.position], leaf = c.leaf()
        leaves.append(leaf)
    return func(*filled), leaves


def _parts(t: Tensor) -> int:
    return 2 if t.is_complex() else 1


def _as_real(t: Tensor) -> Tensor:
    """(n,) complex as (2n,) real: real and imaginary part in turn."""
    return torch.view_as_real(t.resolve_conj()).reshape(-1) if t.is_complex() else t


def _basis(result: Tensor, direction: int) -> Tensor:
    cotangent = torch.zeros(result.numel() * _parts(result), dtype=_real(result.dtype), device=result.device)
    cotangent[direction] = 1
    return torch.view_as_complex(cotangent.reshape(-1, 2)) if result.is_complex() else cotangent


def _real(dtype: torch.dtype) -> torch.dtype:
    return (
        torch.float64 if dtype == torch.complex128 else torch.float32 if dtype == torch.complex64 else dtype
    )


def _vjp(result: Tensor, leaves: list[Tensor], cotangent: Tensor) -> tuple[Tensor | None, ...]:
    if not result.requires_grad:
        return (None,) * len(leaves)
    return torch.autograd.grad(result, leaves, cotangent, retain_graph=True, allow_unused=True)


def _inside(c: Input, gradient: Tensor | None) -> Tensor:
    """A gradient at the specified entries, as real numbers."""
    if gradient is None:
        return _as_real(torch.zeros_like(c.entries()))
    return _as_real(c.split(gradient.detach())[0].to(c.point().dtype))


def _outside_or_wrong_dtype(
    checked: list[Input],
    grads: tuple[Tensor | None, ...],
    number: int,
    output: Any,
    direction: int,
    check_dtypes: bool,
) -> str | None:
    for c, gradient in zip(checked, grads, strict=True):
        if gradient is None:
            continue
        if check_dtypes and gradient.dtype != c.point().dtype:
            return f"the gradient of {c.name} has dtype {gradient.dtype}, expected {c.point().dtype}"
        shape = c.given.shape if c.sparse else c.point().shape
        if gradient.shape != shape:
            return f"the gradient of {c.name} has shape {tuple(gradient.shape)}, expected {tuple(shape)}"
        for place, value in c.split(gradient.detach())[1]:
            at = place_in(output, direction // (2 if output.dtype.is_complex else 1))
            return (
                f"outside the pattern of {c.name}, at entry {place}, the gradient of output {number} at {at} must be "
                f"exactly 0, analytic value {value}"
            )
    return None


def _nondeterministic(
    checked: list[Input], first: list[Tensor], second: list[Tensor], tolerance: float
) -> str | None:
    for c, a, b in zip(checked, first, second, strict=True):
        differs = (a - b).abs()
        if differs.numel() and not bool((differs <= tolerance).all() | (a.isnan() & b.isnan()).all()):
            return (
                f"the gradient of {c.name} differs between two backward passes by {differs.max().item()}, more than "
                f"nondet_tol={tolerance}"
            )
    return None


def _moved(func: Function, arguments: tuple[Any, ...], c: Input, real_entries: Tensor) -> list[Tensor]:
    """All results, as real numbers, for other entries of one input."""
    entries = torch.view_as_complex(real_entries.reshape(-1, 2)) if c.point().is_complex() else real_entries
    filled = list(arguments)
    filled[c.position] = c.argument(c.placed(entries))
    with torch.no_grad():
        return [_as_real(e.detach()) for _, e in entries_of_outputs(func(*filled))]


def _difference(
    func: Function, arguments: tuple[Any, ...], c: Input, by: Tensor, eps: float, sizes: list[int]
) -> Tensor:
    """The change of all results, one behind the other, in one direction of the entries of one input."""
    middle = _as_real(c.entries())
    up, down = (_moved(func, arguments, c, middle + sign * eps * by) for sign in (1, -1))
    for a, size in zip(up, sizes, strict=True):
        if a.numel() != size:
            raise ValueError(
                "gradcheck: the pattern of a result changes with the numbers, found "
                f"{a.numel()} specified entries instead of {size}; a pattern must be constant"
            )
    return (torch.cat(up) - torch.cat(down)) / (2 * eps)


def _compare_all(
    func: Function,
    arguments: tuple[Any, ...],
    checked: list[Input],
    rows: list[list[Tensor]],
    entries: list[tuple[Any, Tensor]],
    eps: float,
    atol: float,
    rtol: float,
) -> str | None:
    sizes = [e.numel() * _parts(e) for _, e in entries]
    for c, of in zip(checked, rows, strict=True):
        if not of:
            continue
        analytic = torch.stack(of)  # (results, entries)
        for column in range(analytic.shape[1]):
            by = torch.zeros_like(analytic[0])
            by[column] = 1
            numeric = _difference(func, arguments, c, by, eps, sizes)
            wrong = ~torch.isclose(analytic[:, column], numeric.to(analytic.dtype), rtol, atol)
            if bool(wrong.any()):
                return _located(
                    c, column, int(wrong.nonzero()[0]), analytic[:, column], numeric, entries, sizes
                )
    return None


def _located(
    c: Input,
    column: int,
    row: int,
    analytic: Tensor,
    numeric: Tensor,
    entries: list[tuple[Any, Tensor]],
    sizes: list[int],
) -> str:
    number, inner = 0, row
    while inner >= sizes[number]:
        inner -= sizes[number]
        number += 1
    output, result = entries[number]
    complex_input, complex_output = c.point().is_complex(), result.is_complex()
    of = f" ({('real', 'imaginary')[column % 2]} part)" if complex_input else ""
    to = f" ({('real', 'imaginary')[inner % 2]} part)" if complex_output else ""
    return (
        f"the derivative of output {number} at {place_in(output, inner // (2 if complex_output else 1))}{to} with "
        f"respect to {c.name} at entry {c.place(column // (2 if complex_input else 1))}{of} is wrong: numeric "
        f"{numeric[row].item():.8g}, analytic {analytic[row].item():.8g}"
    )


def _compare_one_combination(
    func: Function,
    arguments: tuple[Any, ...],
    checked: list[Input],
    entries: list[tuple[Any, Tensor]],
    leaves: list[Tensor],
    eps: float,
    atol: float,
    rtol: float,
    check_dtypes: bool,
) -> tuple[bool, str | None]:
    """One random combination of results against one of entries: two calls for each input, one backward pass."""
    generator = torch.Generator().manual_seed(0)

    def random(like: Tensor) -> Tensor:
        return torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device)

    weights = [random(_as_real(e.detach())) for _, e in entries]
    differentiable = [
        (e, torch.view_as_complex(w.reshape(-1, 2)) if e.is_complex() else w)
        for (_, e), w in zip(entries, weights, strict=True)
        if e.requires_grad
    ]
    grads = torch.autograd.grad(
        [e for e, _ in differentiable],
        leaves,
        [w for _, w in differentiable],
        retain_graph=True,
        allow_unused=True,
    )
    output = entries[0][0]
    if _outside_or_wrong_dtype(checked, grads, 0, output, 0, check_dtypes) is not None:
        return False, None  # all entries will be compared, which says of which result
    sizes = [w.numel() for w in weights]
    for c, gradient in zip(checked, grads, strict=True):
        analytic = _inside(c, gradient)
        by = random(analytic)
        numeric = _difference(func, arguments, c, by, eps, sizes) @ torch.cat(weights).to(analytic.dtype)
        scale = max(1.0, by.abs().sum().item() ** 0.5)
        if not torch.isclose(analytic @ by, numeric, rtol, atol * scale):
            return False, None
    return True, None
