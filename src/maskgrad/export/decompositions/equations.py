"""Einstein sums as products of matrices: ONNX Runtime (1.31) ends the whole process at an Einsum of an empty batch."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.export.decompositions.views import diagonal

__all__ = ["BODIES"]


def einsum(equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Tensor:
    """Pair by pair from the left; what nothing needs later is summed up on the way."""
    labels, output = _labels(equation.replace(" ", ""), tensors)
    found, names = _with_distinct_labels(tensors[0], labels[0])
    for at, (tensor, label) in enumerate(zip(tensors[1:], labels[1:], strict=True), 1):
        other, others = _with_distinct_labels(tensor, label)
        later = set(output).union(*labels[at + 1 :])
        found, names = _product(found, names, other, others, later)
    rest = [at for at, name in enumerate(names) if name not in output]
    if rest:
        found = found.sum(rest)
        names = "".join([name for name in names if name in output])
    return found.permute([names.index(name) for name in output])


def _labels(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """One letter for each dimension: of the operands, and of the result. Ellipses become letters of their own."""
    inputs, arrow, output = equation.partition("->")
    labels = inputs.split(",")
    free = [letter for letter in string.ascii_letters + string.digits if letter not in equation]
    # how many dimensions the ellipsis of each operand stands for
    hidden = [
        tensor.ndim - len(label.replace("...", "")) if "..." in label else 0
        for tensor, label in zip(tensors, labels, strict=True)
    ]
    letters = "".join(free[: max(hidden)])
    if not arrow:
        counted = inputs.replace(",", "").replace(".", "")
        output = "..." * ("..." in inputs) + "".join(sorted({n for n in counted if counted.count(n) == 1}))
    filled = [
        label.replace("...", letters[len(letters) - number :])
        for label, number in zip(labels, hidden, strict=True)
    ]
    return filled, output.replace("...", letters)


def _with_distinct_labels(x: Tensor, names: str) -> tuple[Tensor, str]:
    """The diagonal where a letter stands twice."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first, second = names.index(name), names.rindex(name)
            x = diagonal(x, 0, first, second)
            names = names[:first] + names[first + 1 : second] + names[second + 1 :] + name
    return x, names


def _product(a: Tensor, a_names: str, b: Tensor, b_names: str, later: set[str]) -> tuple[Tensor, str]:
    """One batched product of matrices: shared letters that are needed later, own letters, shared ones that are not."""
    sizes = dict(zip(b_names, b.shape, strict=True))
    # a size of 1 stands for any
    sizes |= {n: s for n, s in zip(a_names, a.shape, strict=True) if n not in sizes or _is_one(sizes[n])}
    for mine, theirs, number in ((a_names, b_names, 0), (b_names, a_names, 1)):
        alone = [at for at, name in enumerate(mine) if name not in theirs and name not in later]
        if alone:
            a, b = (a.sum(alone), b) if number == 0 else (a, b.sum(alone))
    a_names = "".join([n for n in a_names if n in b_names or n in later])
    b_names = "".join([n for n in b_names if n in a_names or n in later])
    shared = [n for n in a_names if n in b_names]
    batch, summed = [n for n in shared if n in later], [n for n in shared if n not in later]
    left, right = [n for n in a_names if n not in shared], [n for n in b_names if n not in shared]

    def matrix(x: Tensor, names: str, first: list[str], second: list[str]) -> Tensor:
        x = x.permute([names.index(n) for n in (*batch, *first, *second)])
        x = x.expand([sizes[n] for n in (*batch, *first, *second)])
        return x.reshape([_product_of(sizes, part) for part in (batch, first, second)])

    found = torch.bmm(matrix(a, a_names, left, summed), matrix(b, b_names, summed, right))
    names = [*batch, *left, *right]
    return found.reshape([sizes[n] for n in names]), "".join(names)


def _product_of(sizes: dict[str, Any], names: list[str]) -> Any:
    return math.prod([sizes[n] for n in names])


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


BODIES = {"einsum": einsum}
