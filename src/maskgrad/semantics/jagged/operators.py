"""Operators for graphs on CPUs that read the lengths of sequences when they run: products with each, sums along each.

A graph does not know the lengths, so it cannot call a function for each sequence; an operator can. Eagerly, the
rules call PyTorch's functions themselves. The cost is that of the rows, and one call for each sequence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.mode import mode

__all__ = ["are_wanted", "can_multiply", "product_of_sequences", "sum_along_sequences"]


def are_wanted(rows: Tensor) -> bool:
    """Return whether a graph is traced, of rows on a CPU: elsewhere an operator would wait, and CUDA graphs cannot."""
    return mode() == "graph" and rows.is_cpu and rows.is_floating_point()


def can_multiply(rows: str, other: str, result: str) -> bool:
    """Return whether each letter is in two of these terms, so that the gradients are products, too."""
    terms = [set(rows), set(other), set(result)]
    return all(sum(letter in term for term in terms) > 1 for letter in set.union(*terms))


def _parts(rows: Tensor, offsets: Tensor) -> list[Tensor]:
    return list(rows.split(offsets.diff().tolist()))


def _terms(equation: str) -> list[str]:
    return equation.replace("->", ",").split(",")


def _shape(equation: str, first: Tensor, second: Tensor) -> list[Any]:
    one, other, result = _terms(equation)
    sizes = dict(zip(one + other, [*first.shape, *second.shape], strict=True))
    return [sizes[letter] for letter in result]


def _multiplied(equation: str, first: Tensor, second: Tensor) -> Tensor:
    """``einsum``; of two matrices in one call, which takes half the time."""
    one, other, result = _terms(equation)
    summed = set(one + other) - set(result)
    if not len(one) == len(other) == len(result) == 2 or len(summed) != 1:
        return torch.einsum(equation, first, second)
    if result[0] in other:
        one, other, first, second = other, one, second, first
    return (first if one[1] in summed else first.t()) @ (second if other[0] in summed else second.t())


def product_of_sequences(equation: str, rows: Tensor, matrices: Tensor, offsets: Tensor) -> Tensor:
    """``einsum(equation, rows of sequence b, matrices[b])`` for each b, such as ``"td,de->te"``: rows."""
    found: Tensor = torch.ops.maskgrad.product_of_sequences(equation, rows, matrices, offsets)
    return found


def _product(equation: str, rows: Tensor, matrices: Tensor, offsets: Tensor) -> Tensor:
    if not matrices.shape[0]:
        return _fake_product(equation, rows, matrices, offsets)
    parts = zip(_parts(rows, offsets), matrices.unbind(), strict=True)
    return torch.cat([_multiplied(equation, part, matrix) for part, matrix in parts])


def _fake_product(equation: str, rows: Tensor, matrices: Tensor, offsets: Tensor) -> Tensor:
    return rows.new_empty(_shape(equation, rows, matrices.new_empty(matrices.shape[1:])))


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.equation, *tensors = inputs
    ctx.save_for_backward(*tensors)


def _gradient_of_product(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, matrices, offsets = ctx.saved_tensors
    one, other, result = _terms(ctx.equation)
    of_rows = of_matrices = None
    if ctx.needs_input_grad[1]:
        of_rows = product_of_sequences(f"{result},{other}->{one}", grad, matrices, offsets)
    if ctx.needs_input_grad[2]:
        of_matrices = torch.ops.maskgrad.product_within_sequences(
            f"{one},{result}->{other}", rows, grad, offsets
        )
    return None, of_rows, of_matrices, None


def _within(equation: str, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
    """``einsum(equation, rows of sequence b, other rows of it)`` for each b, such as ``"td,te->de"``: matrices."""
    parts = zip(_parts(first, offsets), _parts(second, offsets), strict=True)
    found = [_multiplied(equation, one, other) for one, other in parts]
    return torch.stack(found) if found else _fake_within(equation, first, second, offsets)


def _fake_within(equation: str, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
    return first.new_empty([offsets.shape[0] - 1, *_shape(equation, first, second)])


def _gradient_within(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    first, second, offsets = ctx.saved_tensors
    one, other, result = _terms(ctx.equation)
    return (
        None,
        product_of_sequences(f"{other},{result}->{one}", second, grad, offsets),
        product_of_sequences(f"{one},{result}->{other}", first, grad, offsets),
        None,
    )


def sum_along_sequences(rows: Tensor, offsets: Tensor) -> Tensor:
    """``cumsum(0)`` of the rows of each sequence."""
    found: Tensor = torch.ops.maskgrad.sum_along_sequences(rows, offsets, False)
    return found


def _sum_along(rows: Tensor, offsets: Tensor, backwards: bool) -> Tensor:
    parts = _parts(rows, offsets)
    if backwards:
        found = [part.flip(0).cumsum(0, dtype=rows.dtype).flip(0) for part in parts]
    else:
        found = [part.cumsum(0, dtype=rows.dtype) for part in parts]
    return torch.cat(found) if found else torch.empty_like(rows)


def _save_direction(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, offsets, ctx.backwards = inputs
    ctx.save_for_backward(offsets)


def _gradient_along(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (offsets,) = ctx.saved_tensors
    return torch.ops.maskgrad.sum_along_sequences(grad, offsets, not ctx.backwards), None, None


for _name, _arguments, _body, _fake, _gradient, _save in (
    ("product_of_sequences", "str equation, Tensor rows, Tensor matrices, Tensor offsets", _product, _fake_product,
     _gradient_of_product, _save_product),
    ("product_within_sequences", "str equation, Tensor first, Tensor second, Tensor offsets", _within, _fake_within,
     _gradient_within, _save_product),
    ("sum_along_sequences", "Tensor rows, Tensor offsets, bool backwards", _sum_along,
     lambda rows, *_: rows.new_empty(rows.shape), _gradient_along, _save_direction),
):  # fmt: skip
    torch.library.define(f"maskgrad::{_name}", f"({_arguments}) -> Tensor")
    torch.library.impl(f"maskgrad::{_name}", "default", _body)
    torch.library.register_fake(f"maskgrad::{_name}", _fake)
    torch.library.register_autograd(f"maskgrad::{_name}", _gradient, setup_context=_save)
