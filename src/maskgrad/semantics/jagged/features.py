"""Operations along features: every row is left to itself, so that PyTorch's own function does it on the rows.

The rows stand in a frame of the same rank (:func:`in_frame`), so that the function is called with the arguments it was
called with. What reaches along batch or ragged dimension goes through the padded form (see :mod:`registry`).
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.dimensions import as_dim, as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import (
    aligned,
    attach,
    everywhere,
    in_frame,
    is_jagged,
    out_of_frame,
)
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.sparse.entries import SparseEntries, is_masked

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeIs

    from maskgrad.semantics.facts import Operation
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["RULES", "over_everything"]


def framed(x: Jagged, run: Callable[[Tensor], Any], at: tuple[int, ...] | None = None) -> Any:
    """What ``run`` makes of the rows in their frame, and of the result rows again; ``at``: where these stand then."""
    old = x.pattern.at
    new = old if at is None else at
    result = run(in_frame(x.values, old))
    pattern = x.pattern.moved(new)
    return attach(result, lambda values: SparseEntries(out_of_frame(values, new), pattern))


def _without(at: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Where dimensions stand after ``dims`` are gone."""
    return tuple([place - len([d for d in dims if d < place]) for place in at])


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The first operand, and the other arguments as they were given."""
    if args:
        return args[0], args[1:], kwargs
    name = next(n for n in ("input", "self", "tensor") if n in kwargs)
    return kwargs[name], (), {k: v for k, v in kwargs.items() if k != name}


#: Arguments that name places along a dimension, the same ones for every row.
ALONG_DIM = ("index", "indices_or_sections")


def _gives_nothing(x: Jagged, dims: tuple[int, ...], signature: str, given: dict[str, Any]) -> bool:
    """Whether a reduction has too few entries: none, for an estimate no degree of freedom, for a quantile no row."""
    names, lost = signature.split(), 0.0
    if "unbiased" in names:
        correction = given.get("correction", given.get("unbiased"))
        lost = 1 if correction is None else float(correction)
    return math.prod([x.shape[d] for d in dims]) <= lost or ("q" in names and not x.values.numel())


#: Reductions that say more than PyTorch's: of Booleans, and with infinities. Their own rule is applied to the rows.
BY_RULE = frozenset(("argmax", "argmin", "var", "std", "var_mean", "std_mean"))


def _of_rows(operation: Operation) -> Callable[..., Any]:
    """The rule of an operation for rows that are all specified, and give specified results."""

    def values_of(result: Any) -> Any:
        if isinstance(result, Entries):
            return result.values
        return tuple([values_of(part) for part in result])

    def run(function: Callable[..., Any], rows: Tensor, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if operation.name not in BY_RULE:
            return function(rows, *rest, **named)
        return values_of(operation.body(function, (everywhere(rows), *rest), named))

    return run


def along(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for functions with an argument ``dim``, all of whose dimensions are features."""
    signature, default, reduces = ALONG[operation.name]
    run = _of_rows(operation)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound(signature, args, kwargs)
        x = given["input"]
        shared = [given.get(name) for name in ALONG_DIM]
        others = [
            v
            for v in (*args, *kwargs.values())
            if (is_masked(v) and v is not x)
            or (isinstance(v, Tensor) and v.ndim and not any(v is s for s in shared))
        ]  # which may differ from row to row
        dim = given.get("dim", given.get("dims", default))
        if others or not is_jagged(x) or dim is None or isinstance(dim, (bool, Tensor)):
            return fallback(function, args, kwargs)
        dims = as_dims(dim, len(x.shape))
        if (not isinstance(dim, int) and not len(dim)) or any(d in x.pattern.at for d in dims):
            return fallback(function, args, kwargs)
        if reduces and _gives_nothing(x, dims, signature, given):
            return fallback(function, args, kwargs)
        x, rest, named = _first(args, kwargs)
        at = _without(x.pattern.at, dims) if reduces and not given.get("keepdim", False) else None
        return framed(x, lambda values: run(function, values, rest, named), at)

    return body


def trailing(x: Any, count: int) -> TypeIs[Jagged]:
    """Whether the last ``count`` dimensions are features."""
    return is_jagged(x) and max(x.pattern.at) < len(x.shape) - count


def linear(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``F.linear``: each row by itself."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("input weight bias", args, kwargs)
        x, others = given["input"], (given["weight"], given.get("bias"))
        if not trailing(x, 1) or not x.shape[-1] or any(is_masked(o) for o in others):
            return fallback(function, args, kwargs)
        return SparseEntries(function(x.values, *others), x.pattern)

    return body


def matmul(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """A product with a plain matrix or vector from the right."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("input other", args, kwargs)
        x, other = given["input"], given.get("other")
        if not isinstance(other, Tensor) or not 1 <= other.ndim <= 2 or not trailing(x, 1) or not x.shape[-1]:
            return fallback(function, args, kwargs)
        if function is operator.imatmul:
            return fallback(function, args, kwargs)
        return SparseEntries(torch.matmul(x.values, other), x.pattern)

    return body


def addmm(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.addmm`` of flattened rows with a plain matrix, and a bias that is the same for all."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("input mat1 mat2", args, kwargs)
        added, x, other = (given.pop(name) for name in ("input", "mat1", "mat2"))
        plain = isinstance(added, Tensor) and isinstance(other, Tensor) and set(given) <= {"beta", "alpha"}
        if not plain or not trailing(x, 1) or (added.ndim == 2 and added.shape[0] != 1) or len(args) > 3:
            return fallback(function, args, kwargs)
        return SparseEntries(torch.addmm(added, x.values, other, **given), x.pattern)

    return body


def layer_norm(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Norms over the last dimensions."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("input normalized_shape weight bias eps", args, kwargs)
        x, shape = given["input"], given["normalized_shape"]
        masked = any(is_masked(v) for k, v in given.items() if k != "input")
        if masked or not trailing(x, 1 if isinstance(shape, int) else len(shape)):
            return fallback(function, args, kwargs)
        x, rest, named = _first(args, kwargs)
        return SparseEntries(function(x.values, *rest, **named), x.pattern)

    return body


def batch_norm(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Statistics over all rows, for each channel."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, rest, named = _first(args, kwargs)
        masked = any(is_masked(v) for v in (*rest, *named.values()))
        if masked or not is_jagged(x) or len(x.shape) < 2 or 1 in x.pattern.at:
            return fallback(function, args, kwargs)
        # one row alone is too little to train on for PyTorch, and not for us
        at = x.pattern.at
        result = operation.body(function, (everywhere(in_frame(x.values, at)), *rest), named)
        return SparseEntries(out_of_frame(result.values, at), x.pattern)

    return body


def lookup(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``F.embedding`` of jagged indices, and ``F.one_hot``: a dimension of features behind the others."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, rest, named = _first(args, kwargs)
        if not is_jagged(x) or any(is_masked(v) for v in (*rest, *named.values())):
            return fallback(function, args, kwargs)
        if function is F.one_hot and not x.values.numel():  # PyTorch has no number of classes for no labels
            return fallback(function, args, kwargs)
        return SparseEntries(function(x.values, *rest, **named), x.pattern)

    return body


def prelu(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``prelu``, whose weight belongs to dimension 1, if that is one of features or there is one weight."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("input weight", args, kwargs)
        x, weight = given["input"], given["weight"]
        if not is_jagged(x) or is_masked(weight) or (weight.numel() != 1 and 1 in x.pattern.at):
            return fallback(function, args, kwargs)
        return framed(x, lambda rows: function(rows, weight))

    return body


#: Reductions that PyTorch refuses where there is nothing.
NEED_ENTRIES = frozenset(
    ("amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "median", "nanmedian", "quantile", "nanquantile",
     "norm", "linalg.norm", "linalg.vector_norm")
)  # fmt: skip


def over_everything(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of all rows to one number, in which their places do not matter."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, rest, named = _first(args, kwargs)
        dim = named.get("dim", named.get("axis", rest[0] if rest else None))
        if not is_jagged(x) or not (dim is None or isinstance(dim, bool)) or any(map(is_masked, rest)):
            return fallback(function, args, kwargs)
        if operation.name in NEED_ENTRIES and not x.values.numel():
            return fallback(function, args, kwargs)
        if named.get("keepdim", named.get("keepdims", False)) or (len(rest) > 1 and rest[1] is True):
            return fallback(function, args, kwargs)
        return operation.body(function, (everywhere(x.values), *rest), named)

    return body


def pairs(signature: str, default: int) -> Callable[..., Any]:
    """Distances of two operands along a dimension of features."""

    def made(operation: Operation, fallback: Callable[..., Any]) -> Callable[..., Any]:
        def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = bound(signature, args, kwargs)
            first, second, *_ = signature.split()
            names = {"input": first}
            a, b = (given.pop(names.get(n, n)) for n in (first, second))
            dim = given.get("dim", default)
            found = aligned([a, b])
            if found is None or any(isinstance(o, Entries) for o in found.operands):
                return fallback(function, args, kwargs)
            rank = len(found.pattern.at) + max(o.ndim for o in found.operands) - 1
            dim = as_dim(dim, rank)
            if dim in found.pattern.at:
                return fallback(function, args, kwargs)
            at = found.pattern.at
            if function is F.cosine_similarity or "dim" in signature.split():
                given["dim"] = dim
            rows = [in_frame(o, at) for o in found.operands]
            if not all(part.shape[dim] for part in rows):
                return fallback(function, args, kwargs)
            reduced = at if given.get("keepdim") else _without(at, (dim,))
            return SparseEntries(
                out_of_frame(function(*rows, **given), reduced), found.pattern.moved(reduced)
            )

        return body

    return made


class Along(NamedTuple):
    """What PyTorch calls the arguments, the default of ``dim``, and whether this dimension is gone afterwards."""

    signature: str
    default: int | None = None
    reduces: bool = False


#: Functions with an argument ``dim``.
ALONG: dict[str, Along] = {
    **dict.fromkeys(
        ("sum", "mean", "nansum", "nanmean", "prod", "amax", "amin", "argmax", "argmin", "max", "min", "any", "all",
         "logsumexp", "count_nonzero", "median", "nanmedian"),
        Along("input dim keepdim", reduces=True),
    ),
    "mode": Along("input dim keepdim", -1, reduces=True),
    "kthvalue": Along("input k dim keepdim", -1, reduces=True),
    **dict.fromkeys(("quantile", "nanquantile"), Along("input q dim keepdim", reduces=True)),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), Along("input dim unbiased keepdim", reduces=True)),
    "norm": Along("input p dim keepdim", reduces=True),
    **dict.fromkeys(("linalg.norm", "linalg.vector_norm"), Along("input ord dim keepdim", reduces=True)),
    **dict.fromkeys(
        ("softmax", "log_softmax", "_safe_softmax", "nn.functional.softmin", "cumsum", "cumprod", "logcumsumexp",
         "cummax", "cummin", "flip", "narrow"),
        Along("input dim"),
    ),
    **dict.fromkeys(("sort", "argsort", "nn.functional.glu"), Along("input dim", -1)),
    "topk": Along("input k dim", -1),
    "nn.functional.normalize": Along("input p dim", 1),
    "roll": Along("input shifts dim"),
    **dict.fromkeys(("chunk", "unsafe_chunk"), Along("input chunks dim", 0)),
    **dict.fromkeys(
        ("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes"), Along("input sizes dim", 0)
    ),
    "tensor_split": Along("input indices_or_sections dim", 0),
    "unbind": Along("input dim", 0, reduces=True),
    "select": Along("input dim", reduces=True),
    "index_select": Along("input dim index"),
    "take_along_dim": Along("input indices dim"),
    "diff": Along("input n dim", -1),
}  # fmt: skip

RULES: dict[str, Callable[..., Callable[..., Any]]] = {
    "linear": linear,
    "nn.functional.linear": linear,
    "matmul": matmul,
    "mm": matmul,
    "addmm": addmm,
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": layer_norm,
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.embedding": lookup,
    "nn.functional.one_hot": lookup,
    "prelu": prelu,
    "nn.functional.cosine_similarity": pairs("x1 x2 dim eps", 1),
    "nn.functional.pairwise_distance": pairs("x1 x2 p eps keepdim", -1),
}
