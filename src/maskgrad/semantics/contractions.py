"""Contractions: sums over the products whose factors are all specified; unspecified if there are none.

Most are one line of a table: torch's name, and its equation in Einstein's notation, from which the mask follows.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.kernels.filling.finite import by_rows
from maskgrad.kernels.invariant import in_blocks
from maskgrad.kernels.smallest import any_of, any_of_each, in_rows
from maskgrad.semantics.elementwise import elementwise
from maskgrad.semantics.entries import Entries, Operand, all_specified, fill, mask_of, safe, values_of
from maskgrad.semantics.facts import Operation, of_rule, record
from maskgrad.semantics.numbers import Number
from maskgrad.semantics.products import (
    Equation,
    any_product,
    bias_mask,
    contracted,
    einsum_call,
    letters,
    sum_of_products,
    written_out,
)
from maskgrad.semantics.reductions import sum
from maskgrad.semantics.signatures import bound, paired

PATTERN = "specified where at least one product has only specified factors"
GRADIENT = "the other factors, where all are specified"

#: torch's name of the first factor; the second is named differently in each function.
FIRST = ("input", "self", "x")


#: The letters of a vector and of matrices as the factors of a product, and those of the result.
FACTORS = ({1: ("j", ""), 2: ("...ij", "i")}, {1: ("j", ""), 2: ("...jk", "k")})


def factors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Operand, Operand, dict[str, Any]]:
    """The two factors of a call, and its options."""
    tensors: dict[str, Operand] = {
        k: v for k, v in kwargs.items() if isinstance(v, Entries) or hasattr(v, "shape")
    }
    first = [value for name, value in tensors.items() if name in FIRST]
    factors: list[Operand] = [*args, *first, *[v for name, v in tensors.items() if name not in FIRST]]
    left, right = _tensors(factors, 2)
    return left, right, {name: value for name, value in kwargs.items() if name not in tensors}


def _tensors(found: Sequence[Any], number: int) -> Sequence[Operand]:
    """Return the operands of a product; torch raises a TypeError for anything else."""
    if len(found) != number or not all(isinstance(x, Entries) or hasattr(x, "shape") for x in found):
        kinds = ", ".join(re.sub(r"\w*Entries", "MaskedTensor", type(operand).__name__) for operand in found)
        raise TypeError(
            f"this product takes {number} tensors, found {kinds}; wrap arrays and numbers in torch.as_tensor"
        )
    return found


def meeting_of(*ranks: int) -> Equation:
    """The equation of ``left @ right`` for factors of these ranks."""
    (first, row), (second, column) = (FACTORS[i].get(rank, FACTORS[i][2]) for i, rank in enumerate(ranks))
    return written_out(f"{first},{second}->...{row}{column}", ranks)


def multiply(
    left: Operand, right: Operand, function: Callable[..., Tensor] = torch.matmul, **options: Any
) -> Entries:
    """``left @ right`` for operands of any rank."""
    meeting = meeting_of(values_of(left).ndim, values_of(right).ndim)
    return contracted(lambda a, b: in_blocks(function, a, b, **options), (left, right), meeting)


def matmul(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``matmul`` and its special cases by rank (``mm``, ``bmm``, ``mv``), which check shapes themselves."""
    left, right, options = factors_of(args, kwargs)
    return multiply(left, right, torch.matmul if function is operator.imatmul else function, **options)


def scalar_product(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``dot``, ``vdot`` and ``linalg.vecdot``, over the positions where both vectors are specified."""
    x, y, options = factors_of(args[:2], kwargs)
    dim = options.pop("dim", args[2] if len(args) > 2 else -1)
    along = {"dim": dim} if function is torch.linalg.vecdot else {}
    if not along and values_of(x).shape != values_of(y).shape:
        function(values_of(x), values_of(y))  # torch raises the errors
    both = all_specified(x, y).expand(torch.broadcast_shapes(values_of(x).shape, values_of(y).shape))
    return Entries(function(fill(x, both, 0), fill(y, both, 0), **along), any_of(both, (dim,)))


def inner(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``inner``: over the last dimension of both; a scalar multiplies."""
    left, right, _ = factors_of(args, kwargs)
    if 0 in (values_of(left).ndim, values_of(right).ndim):
        return elementwise(1)(torch.mul, (left, right), {})  # type: ignore[no-any-return]
    if values_of(left).shape[-1] != values_of(right).shape[-1]:  # of size 1, tensordot would repeat it
        torch.inner(values_of(left), values_of(right))  # raises the error
    return tensordot(left, right, ([-1], [-1]))


def _split(text: str, *sizes: int) -> list[str]:
    """Consecutive parts of the given sizes, and the rest."""
    parts = []
    for size in sizes:
        parts.append(text[:size])
        text = text[size:]
    return [*parts, text]


OUTER = Equation(("i", "j"), "ij")


def outer(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``outer`` and ``ger``: every entry is one product."""
    left, right, _ = factors_of(args, kwargs)
    return contracted(torch.outer, (left, right), OUTER)


def kron(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``kron``: every entry is one product."""
    left, right, _ = factors_of(args, kwargs)
    return Entries(torch.kron(safe(left), safe(right)), torch.kron(mask_of(left), mask_of(right)))


def tensordot(a: Operand, b: Operand, dims: Any = 2) -> Entries:
    """``tensordot`` over a number of dimensions, or over two lists of them."""
    factors = (a, b)
    values = sum_of_products(lambda a, b: torch.tensordot(a, b, dims), factors)
    ranks = [values_of(factor).ndim for factor in factors]
    if isinstance(dims, Tensor):
        dims = dims.tolist() if dims.numel() > 1 else int(dims)
    if isinstance(dims, (tuple, list)):
        pairs = list(zip(dims[0], dims[1], strict=True))
    else:
        pairs = [(ranks[0] - dims + i, i) for i in range(dims)]
    left, right = (list(term) for term in _split(letters(ranks[0] + ranks[1]), ranks[0]))
    kept = "".join(
        letter
        for term, side in ((left, 0), (right, 1))
        for i, letter in enumerate(term)
        # ==: with dynamic sizes torch.compile turns integers into symbols, and finds a symbol in no list
        if not any(pair[side] % ranks[side] == i for pair in pairs)
    )
    for i, j in pairs:
        right[j] = left[i]
    meeting = Equation(("".join(left), "".join(right)), kept)
    return Entries(values, any_product(meeting, factors, values.shape))


def einsum(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``einsum`` in all its forms: sums over the products in which no factor is missing."""
    text, operands = einsum_call((kwargs["equation"], *args) if "equation" in kwargs else args)
    try:
        meeting = written_out(text, [values_of(operand).ndim for operand in operands])
    except ValueError:
        torch.einsum(text, *map(values_of, operands))  # raises the errors
        raise
    return contracted(lambda *factors: torch.einsum(text, *factors), operands, meeting)


#: letters of nn.Linear's weight, of a vector as weight, and of the rows of its input
LINEAR = {1: "...j,j->...", 2: "...j,ij->...i"}


def linear(input: Operand, weight: Operand, bias: Operand | None = None) -> Entries:
    """``input @ weight.T + bias``; an unspecified bias leaves its outputs unspecified."""
    ranks = (values_of(input).ndim, values_of(weight).ndim)
    plain = safe(bias)
    if ranks[1] != 2 or not isinstance(input, Entries) or isinstance(weight, Entries):
        values = sum_of_products(lambda x, w: in_blocks(F.linear, x, w, plain), (input, weight), F.linear)
        mask = any_product(written_out(LINEAR.get(ranks[1], LINEAR[2]), ranks), (input, weight), values.shape)
    elif in_rows(input.mask):
        values = by_rows(lambda x: in_blocks(F.linear, x, weight, plain), *input, weight)
        mask = input.mask.narrow(-1, 0, 1).expand(values.shape)
    else:
        values = sum_of_products(lambda x, w: in_blocks(F.linear, x, w, plain), (input, weight), F.linear)
        mask = any_of_each(input.mask, (ranks[0] - 1,), values.shape)
    return Entries(values, bias_mask(mask, bias))


def bilinear(input1: Operand, input2: Operand, weight: Operand, bias: Operand | None = None) -> Entries:
    """``input1 @ weight[o] @ input2 + bias[o]`` for each output ``o``."""
    factors = (input1, input2, weight)
    meeting = written_out("...i,...j,oij->...o", [values_of(factor).ndim for factor in factors])
    plain = safe(bias)
    values, mask = contracted(lambda x, y, w: F.bilinear(x, y, w, plain), factors, meeting, F.bilinear)
    return Entries(values, bias_mask(mask, bias))


def plus_product(names: str, text: str, pure: Callable[..., Tensor]) -> Callable[..., Any]:
    """``beta * input + alpha * product``: specified where the product and the input are; beta = 0 ignores the input."""
    meeting = written_out(text, [len(term) for term in text.partition("->")[0].split(",")])

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        # the old form has the scalars among the tensors: addmm(beta, input, alpha, mat1, mat2)
        tensors = tuple(arg for arg in args if isinstance(arg, (Entries, Tensor)))
        numbers = [arg for arg in args if not isinstance(arg, (Entries, Tensor))]
        arguments = paired(("beta", "alpha"), numbers) | bound(names, tensors, kwargs)
        input, left, right = _tensors([arguments.pop(name, None) for name in names.split()], 3)
        plain = safe(input)
        values, mask = contracted(
            lambda a, b: function(plain, a, b, **arguments), (left, right), meeting, pure
        )
        return Entries(values, mask if arguments.get("beta") == 0 else bias_mask(mask, input))

    return body


# Products of entries along the paths i-j-k-l add up step by step, and a path with only specified factors exists exactly
# if one leads from i to k and the last factor is specified: contractions of two factors compose, masks included.


def times(left: Operand, right: Operand) -> Operand:
    """One step of a chain."""
    if isinstance(left, Entries) or isinstance(right, Entries):
        return multiply(left, right)
    return torch.matmul(left, right)


def multi_dot(tensors: Sequence[Operand]) -> Entries:
    """``linalg.multi_dot``, from the left; a vector is a row at the start, and a column at the end."""
    if len(tensors) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    return _chain(tensors, "multi_dot", (1, 2))


def chain_matmul(*matrices: Operand) -> Entries:
    """``chain_matmul``: matrices as separate arguments, at least one."""
    return _chain(matrices, "chain_matmul", (2,))


def _chain(matrices: Sequence[Operand], name: str, ends: tuple[int, ...]) -> Entries:
    for i, matrix in enumerate(matrices):
        allowed = ends if i in (0, len(matrices) - 1) else (2,)
        if values_of(matrix).ndim not in allowed:
            ranks = " or ".join(f"{rank}D" for rank in allowed)
            raise RuntimeError(f"{name}(): tensor {i} must be {ranks} but got {values_of(matrix).ndim}D")
    return functools.reduce(times, matrices)  # type: ignore[return-value]  # at least one is masked


def matrix_power(input: Entries, n: int) -> Entries:
    """``n`` factors of the same matrices; the identity, which is specified, for ``n = 0``."""
    values, mask = input
    if values.ndim < 2 or values.shape[-1] != values.shape[-2]:
        torch.linalg.matrix_power(values, 0)  # torch raises the errors
    if n < 0:
        raise UndefinedOnMaskedError(
            f"linalg.matrix_power(n={n})",
            "a matrix with missing entries has no inverse",
            "Fill it first, x.filled(value), or take a fully specified block.",
        )
    if n == 0:
        identity = torch.linalg.matrix_power(torch.where(mask, values, 0), 0)
        return Entries(identity, torch.ones_like(mask))
    result, power = None, input
    while True:  # squares, as in torch
        if n % 2:
            result = power if result is None else multiply(result, power)
        n //= 2
        if not n:
            assert result is not None
            return result
        power = multiply(power, power)


def cross(function: Callable[..., Any], input: Operand, other: Operand, dim: int | None = None) -> Entries:
    """``a_j b_k - a_k b_j``: a difference is specified where both of its products are."""
    if dim is None and function is torch.linalg.cross:
        dim = -1
    values = function(safe(input), safe(other), **({} if dim is None else {"dim": dim}))
    if dim is None:  # torch.cross takes the first dimension of size 3
        dim = list(values_of(input).shape).index(3)
    both = all_specified(input, other).expand(values.shape)
    return Entries(values, both.roll(1, dim) & both.roll(-1, dim))


def trace(input: Entries) -> Entries:
    """The sum of the specified entries of the diagonal."""
    values, mask = input
    if values.ndim != 2 or values.dtype == torch.bool:
        torch.trace(values)  # torch raises the errors
    return sum(Entries(values.diagonal(), mask.diagonal()))


def vander(function: Callable[..., Any], input: Entries, *args: Any, **kwargs: Any) -> Entries:
    """``vander``: the powers of an entry are specified where the entry is."""
    values = function(fill(input, input.mask, 1), *args, **kwargs)
    return Entries(values, input.mask.unsqueeze(-1).expand(values.shape))


CROSS = (
    "specified where the four entries that make the component are",
    "that of the difference of two products",
)
TRACE = "a plain scalar", "the incoming gradient at each specified entry of the diagonal"
POWER = "specified where a path of specified entries leads from row to column; everywhere for n = 0"
POWERS = "that of the vector, for each of the powers", "that of the powers"


def _record(name: str, body: Callable[..., Any], **facts: Any) -> Operation:
    return record(name, "contractions", body, PATTERN, GRADIENT, **facts)


OPERATIONS = (
    _record(
        "matmul",
        matmul,
        extra=(operator.matmul, operator.imatmul, torch.Tensor.__matmul__, torch.linalg.matmul),
        reflected=((torch.Tensor.__rmatmul__, operator.matmul),),
        padded="mask",
    ),
    *(_record(name, matmul, padded="mask") for name in ("mm", "bmm", "mv")),
    _record("dot", scalar_product, padded="mask"),
    _record("vdot", scalar_product),
    _record("linalg.vecdot", scalar_product, extra=(torch.linalg.vecdot,)),
    _record("inner", inner, padded="mask"),
    _record("outer ger", outer, padded="mask"),
    _record("kron", kron),
    _record("tensordot", tensordot, padded="mask"),
    _record("einsum", einsum, padded="mask"),
    _record("linear", linear, padded="mask"),
    _record("bilinear", bilinear, padded="mask"),
    _record("addmm", plus_product("input mat1 mat2", "ij,jk->ik", torch.mm), padded="mask"),
    _record("addmv", plus_product("input mat vec", "ij,j->i", torch.mv)),
    _record("addr", plus_product("input vec1 vec2", "i,j->ij", torch.outer)),
    _record("baddbmm", plus_product("input batch1 batch2", "bij,bjk->bik", torch.bmm), padded="mask"),
    _record(
        "addbmm", plus_product("input batch1 batch2", "bij,bjk->ik", lambda a, b: torch.bmm(a, b).sum(0))
    ),
    record("linalg.multi_dot", "contractions", multi_dot, PATTERN, GRADIENT, extra=(torch.linalg.multi_dot,)),
    of_rule(chain_matmul, "contractions", PATTERN, GRADIENT),
    record(
        "linalg.matrix_power matrix_power",
        "contractions",
        matrix_power,
        POWER,
        GRADIENT,
        functions=(torch.linalg.matrix_power, torch.matrix_power, torch.Tensor.matrix_power),
    ),
    of_rule(cross, "contractions", *CROSS),
    record("linalg.cross", "contractions", cross, *CROSS, functions=(torch.linalg.cross,)),
    of_rule(trace, "contractions", *TRACE, number=Number(0, dim=None), padded="mask"),
    of_rule(vander, "contractions", *POWERS, functions=(torch.vander,)),
    record("linalg.vander", "contractions", vander, *POWERS, functions=(torch.linalg.vander,)),
)
