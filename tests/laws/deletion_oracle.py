"""Law 3 as a loop: for each slice, torch's own function on the slice without its unspecified entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.evaluation import NUMBER
from tests.laws.slices import Part, original_positions, per_group

__all__ = ["ESTIMATES", "nothing_is_left", "reduce_by_deletion", "reduction"]

#: The positional parameters of each reduction behind its input.
SIGNATURES = {
    "norm": ("p", "dim", "keepdim"),
    "linalg.vector_norm": ("ord", "dim", "keepdim"),
    "var": ("dim", "unbiased", "keepdim"),
    "std": ("dim", "unbiased", "keepdim"),
    "var_mean": ("dim", "unbiased", "keepdim"),
    "std_mean": ("dim", "unbiased", "keepdim"),
    "aminmax": (),
}
USUAL_SIGNATURE = ("dim", "keepdim")

#: Estimates, whose first result is a variance or its root.
ESTIMATES = ("var", "std", "var_mean", "std_mean")

#: Which results count positions, and must be counted in the original tensor.
POSITIONS = {
    **dict.fromkeys(("argmax", "argmin"), (0,)),
    **dict.fromkeys(("max", "min", "median", "nanmedian", "kthvalue", "mode"), (1,)),
}


def reduction(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Any, list[Tensor]]:
    """Read the arguments of the call and reduce by deletion."""
    (x, *args), kwargs = call.with_tensors(leaves)
    name = entry.operation.name
    if len(leaves) == 2:  # torch.max of two tensors, which is elementwise
        mask = torch.logical_and(*torch.broadcast_tensors(*masks))
        return entry.function(x, *args, **kwargs), [mask]
    names = SIGNATURES.get(name, USUAL_SIGNATURE)
    if args and isinstance(args[0], bool):  # var(x, unbiased)
        names = ("unbiased",)
    options = dict(zip(names, args, strict=False)) | kwargs
    return reduce_by_deletion(name, entry.function, x, masks[0], **options)


def reduce_by_deletion(
    name: str,
    function: Callable[..., Any],
    x: Tensor,
    mask: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    **options: Any,
) -> tuple[Any, list[Tensor]]:
    """Values and masks of ``function(x, dim=dim, keepdim=keepdim, **options)``, one slice at a time.

    Where nothing is left the value is 0, outside the mask and without a gradient. All entries together give a number:
    PyTorch's own if nothing is left, without a gradient; a masked result only where PyTorch has none.
    """
    whole = dim is None or (isinstance(dim, (tuple, list)) and not dim)
    named = range(x.ndim) if whole else [dim] if isinstance(dim, int) else dim
    reduced = [d % max(x.ndim, 1) for d in named]
    along = {} if dim is None or dim == () else {"dim": 0}
    # a variance has more entries than this, an estimate of fewer is unspecified; the k-th entry is one of k
    needed = max(correction_of(options), 0) if name in ESTIMATES else options.get("k", 1) - 1

    def torch_on(vector: Tensor) -> Any:
        return function(vector, **along, **options)

    if whole and not (keepdim and x.ndim):
        # of no integers torch.median gives the least one
        everything = x[mask]
        nothing = nothing_is_left(torch_on, x) if "median" not in name or x.is_floating_point() else None
        if nothing is not None:
            found = torch_on(everything) if len(everything) else nothing
            if len(everything) <= needed:  # an estimate of too few has no gradient; the mean beside it has
                found = nothing if isinstance(found, Tensor) else (parts_of(nothing)[0], *parts_of(found)[1:])
            return found, [NUMBER for _ in parts_of(found)]
    # what the fewest entries give tells the number of results, their type and dtypes
    kind = torch_on(torch.ones(options.get("k", 1), dtype=x.dtype))

    def rule(vector: Tensor, present: Tensor) -> list[Part]:
        where = original_positions(present)
        nothing = [torch.zeros_like(part) for part in parts_of(kind)]
        enough = len(where) > (0 if name in ESTIMATES else needed)
        results = list(parts_of(torch_on(vector[present]))) if enough else nothing
        if name in ESTIMATES and len(where) <= needed:
            results[0] = connected(nothing[0], x)
        if enough:
            places = POSITIONS.get(name, ())
            results = [where[part] if i in places else part for i, part in enumerate(results)]
        known = [len(where) > needed, *[enough] * (len(results) - 1)]
        return [(part.reshape(1), torch.tensor([k])) for part, k in zip(results, known, strict=True)]

    shape = [1 if d in reduced else size for d, size in enumerate(x.shape) if keepdim or d not in reduced]
    parts, masks = zip(
        *[(v.reshape(shape), k.reshape(shape)) for v, k in per_group(rule, x, mask, reduced)], strict=True
    )
    if isinstance(kind, Tensor):
        return parts[0], list(masks)
    return (parts if type(kind) is tuple else type(kind)(parts)), list(masks)


def correction_of(options: dict[str, Any]) -> float:
    """What a variance takes off the number of its entries."""
    if options.get("correction") is not None:
        return float(options["correction"])
    return 0 if options.get("unbiased") is False else 1


def nothing_is_left(function: Callable[..., Any], x: Tensor) -> Any:
    """What torch gives on an empty tensor, with a gradient of zero; None where it refuses, or has no number."""
    empty = x.reshape(-1)[:0]
    try:
        found = function(empty.detach())
    except (RuntimeError, IndexError):
        return None
    parts = [connected(part, x) for part in parts_of(found)]
    return parts[0] if isinstance(found, Tensor) else tuple(parts)


def connected(part: Tensor, x: Tensor) -> Tensor:
    """A result that depends on nothing of ``x``, as a part of its graph: nothing adds 0, and sends 0 back."""
    if not (part.is_floating_point() or part.is_complex()):
        return part
    nothing = x.reshape(-1)[:0].sum()
    return part + (nothing if part.is_complex() else nothing.real).to(part.dtype)
