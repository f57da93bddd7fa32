"""Operations along features: rows are independent, so PyTorch's own function is applied to them.

The rows are viewed with the same rank (:func:`in_frame`), so that the function gets its original arguments.
Operations along the batch or ragged dimension use the padded form (see :mod:`registry`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import HALVES, Entries, as_entries
from maskgrad.semantics.jagged.rows import (
    Call,
    in_frame,
    is_jagged,
    out_of_frame,
    trailing,
)
from maskgrad.semantics.stored.entries import StoredEntries, attach, is_masked

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["ALONG", "RULES", "along", "degrees_of", "framed", "over_everything", "several_dims"]


def framed(x: Jagged, run: Callable[[Tensor], Any], at: tuple[int, ...] | None = None) -> Any:
    """Apply ``run`` to the rows in their frame, and return the result's rows, which are at dimension ``at``."""
    old = x.pattern.at
    new = old if at is None else at
    result = run(in_frame(x.values, old))
    pattern = x.pattern.moved(new)
    return attach(result, lambda values: StoredEntries(out_of_frame(values, new), pattern))


def _without(at: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Positions of dimensions after ``dims`` are removed."""
    return tuple([place - len([d for d in dims if d < place]) for place in at])


#: Arguments with positions along a dimension, the same for every row.
ALONG_DIM = ("index", "indices_or_sections")


def degrees_of(given: dict[str, Any]) -> float:
    """Number of entries that give no variance: the degrees of freedom used."""
    correction = given.get("correction", given.get("unbiased"))
    return 1.0 if correction is None else float(correction)


def _gives_nothing(x: Jagged, dims: tuple[int, ...], signature: str, given: dict[str, Any]) -> bool:
    """Return whether a reduction has too few entries, or a quantile no row."""
    lost = degrees_of(given) if "unbiased" in signature.split() else 0
    few = math.prod([x.shape[d] for d in dims]) <= lost
    return few or ("q" in signature.split() and not x.values.numel())


#: Reductions that extend PyTorch's (Booleans, infinities). Their own rule is applied to the rows.
BY_RULE = frozenset(("argmax", "argmin", "var", "std", "var_mean", "std_mean"))


def _values_of(result: Any) -> Any:
    return result.values if isinstance(result, Entries) else tuple([_values_of(part) for part in result])


def several_dims(call: Call) -> bool:
    """Return whether dimensions are separate arguments, as in ``x.flip(0, 2)``."""
    return call.operation.name == "flip" and len(call.args) > 2


def along(call: Call) -> Any:
    """The rule for functions with an argument ``dim``, if all of these dimensions are features."""
    signature, default, reduces = ALONG[call.operation.name]
    given = call.bound(signature)
    x = given["input"]
    shared = [given.get(name) for name in ALONG_DIM]
    others = [
        v
        for v in (*call.args, *call.kwargs.values())
        if (is_masked(v) and v is not x)
        or (isinstance(v, Tensor) and v.ndim and not any(v is s for s in shared))
    ]  # which may differ between rows
    dim = given.get("dim", given.get("dims", default))
    if others or several_dims(call) or not is_jagged(x) or dim is None or isinstance(dim, (bool, Tensor)):
        return None
    dims = as_dims(dim, len(x.shape))
    if (not isinstance(dim, int) and not len(dim)) or any(d in x.pattern.at for d in dims):
        return None
    if reduces and _gives_nothing(x, dims, signature, given):
        return None
    x, rest, named = call.first()
    at = _without(x.pattern.at, dims) if reduces and not given.get("keepdim", False) else None
    if call.operation.name not in BY_RULE:
        return framed(x, lambda rows: call.function(rows, *rest, **named), at)
    body = call.operation.body
    return framed(x, lambda rows: _values_of(body(call.function, (as_entries(rows), *rest), named)), at)


def row_by_row(call: Call) -> Any:
    """The rule for functions of each row and plain tensors: ``F.linear``, ``bucketize``."""
    x, rest, named = call.first()
    name = call.operation.name
    if (
        name == "searchsorted"
        and isinstance(x, Tensor)
        and x.ndim == 1
        and rest
        and not any(map(is_masked, rest[1:]))
    ):
        return StoredEntries(call.function(x, rest[0].values, *rest[1:], **named), rest[0].pattern)
    if not is_jagged(x) or any(map(is_masked, (*rest, *named.values()))):
        return None
    if name.endswith("linear") and not (trailing(x, 1) and x.shape[-1]):
        return None
    if name.endswith("_norm"):
        shape = rest[0] if rest else named["normalized_shape"]
        if not trailing(x, 1 if isinstance(shape, int) else len(shape)):
            return None
    if call.function is F.one_hot and not x.values.numel():  # PyTorch infers no number of classes
        return None
    return StoredEntries(call.function(x.values, *rest, **named), x.pattern)


def batch_norm(call: Call) -> Any:
    """Statistics over all rows, for each channel."""
    x, rest, named = call.first()
    masked = any(is_masked(v) for v in (*rest, *named.values()))
    if masked or not is_jagged(x) or len(x.shape) < 2 or 1 in x.pattern.at:
        return None
    # PyTorch refuses a single row in training
    at = x.pattern.at
    result = call.operation.body(call.function, (as_entries(in_frame(x.values, at)), *rest), named)
    return StoredEntries(out_of_frame(result.values, at), x.pattern)


def prelu(call: Call) -> Any:
    """``prelu``, whose weight belongs to dimension 1, if that is one of features or there is one weight."""
    given = call.bound("input weight")
    x, weight = given["input"], given["weight"]
    if not is_jagged(x) or is_masked(weight) or (weight.numel() != 1 and 1 in x.pattern.at):
        return None
    return framed(x, lambda rows: call.function(rows, weight))


#: Reductions that PyTorch refuses for empty tensors.
NEED_ENTRIES = frozenset(
    ("amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "median", "nanmedian", "quantile", "nanquantile",
     "norm", "linalg.norm", "linalg.vector_norm")
)  # fmt: skip


def over_everything(call: Call) -> Any:
    """A reduction of all rows to a scalar that does not depend on their order."""
    x, rest, named = call.first()
    dim = named.get("dim", named.get("axis", rest[0] if rest else None))
    if not is_jagged(x) or not (dim is None or isinstance(dim, bool)) or any(map(is_masked, rest)):
        return None
    if call.operation.name in NEED_ENTRIES and not x.values.numel():
        return None
    if named.get("keepdim", named.get("keepdims", False)) or (len(rest) > 1 and rest[1] is True):
        return None
    values, name = x.values, call.operation.name
    if name not in ("sum", "mean") or not values.numel():
        return call.operation.body(call.function, (as_entries(values), *rest), named)
    if name == "mean" and not (rest or named) and values.is_floating_point() and values.dtype not in HALVES:
        found = values.sum() / values.numel()  # the gradient is a view; that of PyTorch's mean a tensor
    else:
        found = call.function(values, *rest, **named)
    return Entries(found, torch.ones((), dtype=torch.bool, device=values.device))


class Along(NamedTuple):
    """Names of PyTorch's arguments, the default of ``dim``, and whether this dimension is removed."""

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
    "repeat_interleave": Along("input repeats dim"),
    "diff": Along("input n dim", -1),
}  # fmt: skip

RULES: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(
        ("linear", "nn.functional.linear", "nn.functional.layer_norm", "nn.functional.rms_norm",
         "nn.functional.embedding", "nn.functional.one_hot", "bucketize", "searchsorted", "isin"),
        row_by_row,
    ),
    "nn.functional.batch_norm": batch_norm,
    "prelu": prelu,
}  # fmt: skip
