"""Operations along features and along sequences.

Along features rows are independent: PyTorch's own function is applied to them, viewed with the same rank
(:func:`in_frame`), so that it gets its original arguments. Reductions and softmax along the ragged dimension are
over the rows of each sequence, which are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.invariant import is_invariant
from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries, as_entries
from maskgrad.semantics.jagged.rows import Call, in_frame, is_jagged, out_of_frame, trailing
from maskgrad.semantics.stored.entries import StoredEntries, attach, is_masked
from maskgrad.semantics.stored.reductions import of_all
from maskgrad.semantics.stored.registry import rule_for

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = [
    "ALONG", "RULES", "along", "dims_of", "ends", "framed", "over_everything", "over_sequences",
    "within_sequences",
]  # fmt: skip


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


def _gives_nothing(x: Jagged, dims: tuple[int, ...], signature: str, given: dict[str, Any]) -> bool:
    """Return whether a reduction has too few entries, or a quantile no row."""
    lost = 0.0
    if "unbiased" in signature:
        correction = given.get("correction", given.get("unbiased"))
        lost = 1.0 if correction is None else float(correction)
    return math.prod([x.shape[d] for d in dims]) <= lost or (" q " in signature and not x.values.numel())


#: Reductions that extend PyTorch's (Booleans, infinities). Their own rule is applied to the rows.
BY_RULE = frozenset(("argmax", "argmin", "var", "std", "var_mean", "std_mean"))


def dims_of(call: Call) -> tuple[dict[str, Any], tuple[int, ...]] | None:
    """The arguments, and the dimensions that they name; None if there are none, or other operands are masked."""
    signature, default, _ = ALONG[call.operation.name]
    given = call.bound(signature)
    x, dim = given["input"], given.get("dim", default)
    if not is_jagged(x) or any(is_masked(v) for k, v in given.items() if k != "input"):
        return None
    if dim is None or isinstance(dim, (bool, Tensor)) or (not isinstance(dim, int) and not len(dim)):
        return None
    return given, as_dims(dim, len(x.shape))


def along(call: Call) -> Any:
    """The rule for functions with an argument ``dim``, if all of these dimensions are features."""
    signature, _, reduces = ALONG[call.operation.name]
    found = dims_of(call)
    if found is None:
        return None
    given, dims = found
    others = [
        v for k, v in given.items() if k not in ("input", *ALONG_DIM) and isinstance(v, Tensor) and v.ndim
    ]
    if others or any(d in given["input"].pattern.at for d in dims):  # which may differ between rows
        return None
    if reduces and _gives_nothing(given["input"], dims, signature, given):
        return None
    x, rest, named = call.first()
    at = _without(x.pattern.at, dims) if reduces and not given.get("keepdim", False) else None
    if call.operation.name not in BY_RULE and not is_invariant():
        return framed(x, lambda rows: call.function(rows, *rest, **named), at)
    body = call.operation.body
    return framed(
        x,
        lambda rows: attach(body(call.function, (as_entries(rows), *rest), named), lambda part: part.values),
        at,
    )


def row_by_row(call: Call) -> Any:
    """The rule for functions of each row and plain tensors: ``F.linear``, ``bucketize``."""
    x, rest, named = call.first()
    name = call.operation.name
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
    if is_invariant() and name.endswith(("linear", "_norm")):
        found = call.operation.body(call.function, (as_entries(x.values), *rest), named)
        return StoredEntries(found.values, x.pattern)
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


def over_everything(call: Call) -> Any:
    """A reduction of all rows to a scalar that does not depend on their order."""
    x, rest, named = call.first()
    dim = named.get("dim", named.get("axis", rest[0] if rest else None))
    if not is_jagged(x) or not (dim is None or isinstance(dim, bool)) or any(map(is_masked, rest)):
        return None
    if not x.values.numel():  # padded, PyTorch refuses what has no entries by its shape
        return None
    if named.get("keepdim", named.get("keepdims", False)) or (len(rest) > 1 and rest[1] is True):
        return None
    return of_all(call.operation, call.function, x.values, *rest, **named)


def _asked(call: Call) -> dict[str, Any] | None:
    """The arguments, if ``dim`` is the ragged dimension only."""
    found = dims_of(call)
    if found is None:
        return None
    given, dims = found
    pattern = given["input"].pattern
    return given if dims == pattern.at[-1:] and not pattern.is_flat else None


def _by_stored(call: Call, x: Jagged, given: dict[str, Any]) -> Any:
    """The rule for stored entries, along the last sparse dimension."""
    pattern = x.pattern.canonical()
    options = given | {"dim": len(pattern.at) - 1}
    rule: Any = rule_for(call.operation)
    return rule(call.function, (StoredEntries(x.values, pattern),), options)


def over_sequences(call: Call) -> Any:
    """A reduction of each sequence, by the rule for stored entries, which finds them in segments."""
    given = _asked(call)
    if given is None or (call.operation.name == "prod" and not can_read(given["input"].values)):
        return None
    x, keepdim = given.pop("input"), given.pop("keepdim", False)
    at = x.pattern.at
    rest = _without(at[:-1], at[-1:])

    def placed(part: Entries) -> Entries:
        """The leading batch dimensions moved back, and one of size 1 if the ragged one is kept."""
        moved = [t.movedim(tuple(range(len(rest))), rest) for t in part]
        return Entries(*[t.unsqueeze(at[-1]) for t in moved] if keepdim else moved)

    return attach(_by_stored(call, x, given), placed)


def within_sequences(call: Call) -> Any:
    """The rule for functions that normalise the rows of each sequence: softmax, and division by a norm."""
    given = _asked(call)
    if given is None:
        return None
    x = given.pop("input")
    return StoredEntries(_by_stored(call, x, given).values, x.pattern)


def ends(pattern: JaggedPattern, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first or last row of each sequence, and which sequences are not empty: (B,) each."""
    rows = pattern.offsets[1:] - 1 if last else pattern.offsets[:-1]
    some = pattern.lengths() > 0
    return torch.where(some, rows, 0), some


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
         "cummax", "cummin", "narrow"),
        Along("input dim"),
    ),
    **dict.fromkeys(("sort", "argsort", "nn.functional.glu"), Along("input dim", -1)),
    "topk": Along("input k dim", -1),
    "nn.functional.normalize": Along("input p dim", 1),
    **dict.fromkeys(("chunk", "unsafe_chunk"), Along("input chunks dim", 0)),
    **dict.fromkeys(
        ("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes"), Along("input sizes dim", 0)
    ),
    "tensor_split": Along("input indices_or_sections dim", 0),
    "unbind": Along("input dim", 0, reduces=True),
    "select": Along("input dim", reduces=True),
    "index_select": Along("input dim index"),
    "repeat_interleave": Along("input repeats dim"),
    "diff": Along("input n dim prepend append", -1),
}  # fmt: skip

RULES: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(
        ("linear", "nn.functional.linear", "nn.functional.layer_norm", "nn.functional.rms_norm",
         "nn.functional.embedding", "nn.functional.one_hot", "bucketize", "isin"),
        row_by_row,
    ),
    "nn.functional.batch_norm": batch_norm,
    "prelu": prelu,
}  # fmt: skip
