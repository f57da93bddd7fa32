"""Compare Jacobians over specified entries, by finite differences and by backward passes.

Complex numbers count as two real ones: the derivative of the real and of the imaginary part of a result with respect
to the real and the imaginary part of an entry are four values. torch's gradient of a real function L of z = a + ib is
dL/da + i dL/db.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.checked_entries import Input, entries_of_outputs, place_in

__all__ = ["Comparison"]

Results = list[tuple[Any, Tensor]]
"""Each result, and its specified entries as real values."""


@dataclass(frozen=True)
class Comparison:
    """A function, its arguments, those that are ``checked`` (perturbed by ``eps``), and the tolerances."""

    func: Callable[..., Any]
    arguments: tuple[Any, ...]
    checked: list[Input]
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    check_dtypes: bool

    def problem(self, fast: bool) -> str | None:
        """Return a message about the first error of the backward pass, or None."""
        filled, leaves = list(self.arguments), []
        for c in self.checked:
            filled[c.position], leaf = c.leaf()
            leaves.append(leaf)
        results = self._results(filled)
        if not any(result.requires_grad for _, result in results):
            raise ValueError("gradcheck: no result depends on an input that requires a gradient")
        if fast and self._combination_is_right(results, leaves):
            return None
        rows: list[list[Tensor]] = [[] for _ in self.checked]
        for number, (output, result) in enumerate(results):
            for direction in range(result.numel()):
                grads = _vjp(result, leaves, direction)
                for c, gradient in zip(self.checked, grads, strict=True):
                    problem = self._misplaced(c, gradient)
                    if problem is not None:
                        return problem.format(f"output {number} at {_place(output, direction)}")
                analytic = self._inside(grads)
                if direction == 0 and number == 0:
                    problem = self._nondeterministic(analytic, self._inside(_vjp(result, leaves, 0)))
                    if problem is not None:
                        return problem
                for row, of in zip(analytic, rows, strict=True):
                    of.append(row)
        return self._first_difference(rows, results)

    def _results(self, arguments: list[Any]) -> Results:
        return [(output, _as_real(e)) for output, e in entries_of_outputs(self.func(*arguments))]

    def _inside(self, grads: tuple[Tensor | None, ...]) -> list[Tensor]:
        """Return gradients at the specified entries, as real numbers."""
        return [
            _as_real(torch.zeros_like(c.entries()) if g is None else c.split(g.detach())[0].to(c.point.dtype))
            for c, g in zip(self.checked, grads, strict=True)
        ]

    def _misplaced(self, c: Input, gradient: Tensor | None) -> str | None:
        """Return a message about an error found without comparison; ``{}`` stands for the name of the result."""
        if gradient is None:
            return None
        if self.check_dtypes and gradient.dtype != c.point.dtype:
            return f"the gradient of {c.name} has dtype {gradient.dtype}, expected {c.point.dtype}"
        shape = c.given.shape if c.sparse else c.point.shape
        if gradient.shape != shape:
            return f"the gradient of {c.name} has shape {tuple(gradient.shape)}, expected {tuple(shape)}"
        for place, value in c.split(gradient.detach())[1]:
            return (
                f"outside the pattern of {c.name}, at entry {place}, the gradient of {{}} must be exactly 0, analytic "
                f"value {value}"
            )
        return None

    def _nondeterministic(self, first: list[Tensor], second: list[Tensor]) -> str | None:
        for c, a, b in zip(self.checked, first, second, strict=True):
            differs = (a - b).abs()
            same = (differs <= self.nondet_tol).all() | (a.isnan() & b.isnan()).all()
            if differs.numel() and not bool(same):
                return (
                    f"the gradient of {c.name} differs between two backward passes by {differs.max().item()}, more "
                    f"than nondet_tol={self.nondet_tol}"
                )
        return None

    def _difference(self, c: Input, by: Tensor, results: Results) -> Tensor:
        """Return the change of all results, concatenated, in one direction of the entries of one input."""
        moved = []
        for sign in (1, -1):
            entries = _as_real(c.entries()) + sign * self.eps * by
            if c.point.is_complex():
                entries = torch.view_as_complex(entries.reshape(-1, 2))
            filled = list(self.arguments)
            filled[c.position] = c.argument(c.placed(entries))
            with torch.no_grad():
                moved.append([result for _, result in self._results(filled)])
        for a, (_, result) in zip(moved[0], results, strict=True):
            if a.numel() != result.numel():
                raise ValueError(
                    "gradcheck: the pattern of a result changes with the values, found "
                    f"{a.numel()} specified entries instead of {result.numel()}; a pattern must be constant"
                )
        return (torch.cat(moved[0]) - torch.cat(moved[1])) / (2 * self.eps)

    def _first_difference(self, rows: list[list[Tensor]], results: Results) -> str | None:
        """Compare all entries; ``rows`` are the analytic derivatives of each real result by each input."""
        places = [(number, n) for number, (_, result) in enumerate(results) for n in range(result.numel())]
        for c, of in zip(self.checked, rows, strict=True):
            analytic = torch.stack(of, 1) if of else torch.empty(0, 0)  # (entries, results)
            for column, found in enumerate(analytic):
                by = torch.zeros(len(analytic), dtype=found.dtype, device=found.device)
                by[column] = 1
                numeric = self._difference(c, by, results)
                wrong = ~torch.isclose(found, numeric.to(found.dtype), self.rtol, self.atol)
                if bool(wrong.any()):
                    row = int(wrong.nonzero()[0])
                    number, inner = places[row]
                    output = results[number][0]
                    entry = c.place(column // 2 if c.point.is_complex() else column)
                    return (
                        f"the derivative of output {number} at {_place(output, inner)}{_part(output, inner)} with "
                        f"respect to {c.name} at entry {entry}{_part(c.point, column)} is wrong: numeric "
                        f"{numeric[row].item():.8g}, analytic {found[row].item():.8g}"
                    )
        return None

    def _combination_is_right(self, results: Results, leaves: list[Tensor]) -> bool:
        """Compare one random combination of results and entries: two calls for each input, one backward pass."""
        generator = torch.Generator().manual_seed(0)

        def random(like: Tensor) -> Tensor:
            return torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device)

        weights = [random(result.detach()) for _, result in results]
        pairs = [(r, w) for (_, r), w in zip(results, weights, strict=True) if r.requires_grad]
        grads = torch.autograd.grad(
            [r for r, _ in pairs], leaves, [w for _, w in pairs], retain_graph=True, allow_unused=True
        )
        if any(self._misplaced(c, g) is not None for c, g in zip(self.checked, grads, strict=True)):
            return False  # comparing all entries decides
        for c, analytic in zip(self.checked, self._inside(grads), strict=True):
            by = random(analytic)
            numeric = self._difference(c, by, results) @ torch.cat(weights).to(analytic.dtype)
            scale = max(1.0, by.abs().sum().item() ** 0.5)
            if not torch.isclose(analytic @ by, numeric, self.rtol, self.atol * scale):
                return False
        return True


def _as_real(t: Tensor) -> Tensor:
    """Return (n,) complex as (2n,) real: real and imaginary part in turn."""
    return torch.view_as_real(t.resolve_conj()).reshape(-1) if t.is_complex() else t


def _vjp(result: Tensor, leaves: list[Tensor], direction: int) -> tuple[Tensor | None, ...]:
    """Return the gradients of one value of a result."""
    if not result.requires_grad:
        return (None,) * len(leaves)
    return torch.autograd.grad(result[direction], leaves, retain_graph=True, allow_unused=True)


def _place(output: Any, number: int) -> tuple[int, ...]:
    """Return the index of a real value of an output in its full shape."""
    return place_in(output, number // 2 if output.dtype.is_complex else number)


def _part(of: Any, number: int) -> str:
    return f" ({('real', 'imaginary')[number % 2]} part)" if of.dtype.is_complex else ""
