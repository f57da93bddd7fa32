"""Reductions, softmax and normalization of stored values, group by group: no group is empty.

The result of reducing some dimensions contains the remaining indices (COO); that of reducing all is what the rule for
Boolean masks makes of the entries. Positions of extrema refer to the full shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.errors import UnsupportedLayoutError
from maskgrad.mode import forward_mode_is_active
from maskgrad.patterns.stored import ravel_multi_index
from maskgrad.semantics.dimensions import as_dim, as_dims
from maskgrad.semantics.entries import Entries, as_entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.signatures import bound, named
from maskgrad.semantics.stored.elementwise import elementwise
from maskgrad.semantics.stored.entries import StoredEntries, attach, exploded, is_masked
from maskgrad.semantics.stored.groups import Groups, group, grouped, reduced

__all__ = ["NORMALIZED", "REDUCTIONS", "of_all", "reduction"]

#: Groups -> a value for each group (g, *dense), with a mask if some have none; or several.
Formula = Callable[..., Any]
VARIANCE = "input dim unbiased keepdim"


def of_all(
    operation: Operation, function: Callable[..., Any], entries: Tensor, *rest: Any, **named: Any
) -> Any:
    """The rule for Boolean masks, on all entries; one unspecified entry stands for none at all."""
    line = entries.reshape(-1)
    if line.shape[0]:
        x = as_entries(line)
    else:  # what comes of nothing, too, depends on it: gradients are zero, not None
        nothing = line.new_zeros(1) + line.sum(0, dtype=line.dtype)
        x = Entries(nothing, torch.zeros(1, dtype=torch.bool, device=line.device))
    return operation.body(function, (x, *rest), named)


def reduction(
    operation: Operation, formula: Formula, signature: str = "input dim keepdim", by_position: bool = False
) -> Callable[..., Any]:
    """The rule of a reduction: everything by the rule for Boolean masks, else group by group by the formula.

    A formula gets entries and groups, or, ``by_position``, the operand and a dimension, and returns the groups, too.
    """
    name = operation.name

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound(signature, args, kwargs)
        x, dim, keepdim = given.pop("input"), given.pop("dim", None), given.pop("keepdim", False)
        if any(is_masked(o) or isinstance(o, Tensor) for o in (dim, given.get("other"))):  # max of two
            return elementwise(function, args, kwargs)
        if isinstance(dim, bool):  # var(x, unbiased)
            dim, given["unbiased"] = None, dim
        rank = len(x.shape)
        dims = as_dims(dim, rank)
        if not x.values.is_floating_point() or 0 in x.shape or given.get("p") == "nuc":
            model = as_entries(x.values.new_zeros([min(size, 2) for size in x.shape]))
            options = {k: v for k, v in kwargs.items() if k not in ("input", "self")}
            # the rule for Boolean masks raises the errors
            operation.body(function, (model, *args[1:]), options)
        if name == "linalg.norm" and len(dims) > 1 and given.get("ord") not in (None, "fro"):
            raise UnsupportedLayoutError("linalg.norm of a matrix", x.pattern.layout, tuple(x.shape))
        if len(dims) == rank and (not by_position or (dim is None and name in ("max", "min"))):
            given = {key: value for key, value in given.items() if value is not None and value != "fro"}
            given |= {"dim": 0} if name == "logsumexp" else {}  # which needs one
            shape = (1,) * rank if keepdim else ()
            found = of_all(operation, function, x.entries, **given)
            return attach(found, lambda part: Entries(*[t.reshape(shape) for t in part]))
        if (dtype := given.pop("dtype", None)) is not None:
            x = StoredEntries(x.values.to(dtype), x.pattern)
        if by_position:
            found, groups, dims = formula(x, dim)
        else:
            groups, entries, dims = grouped(x, dim)
            found = formula(entries, groups, **given)
        return attach(found, lambda part: reduced(part, groups, dims, rank, keepdim))

    return body


def _inexact(entries: Tensor) -> bool:
    return entries.is_floating_point() or entries.is_complex()


def _sum(entries: Tensor, groups: Groups) -> Tensor:
    """Sum; integers and Booleans in int64."""
    entries = entries if _inexact(entries) else entries.long()
    return groups.sum(entries).to(entries.dtype)


def _mean_without_nan(entries: Tensor, groups: Groups) -> Tensor:
    """NaN if all entries are, with a gradient of 0 there."""
    absent = entries.isnan()
    added = groups.sum(torch.where(absent, 0, entries))
    number = groups.sum((~absent).to(added.dtype.to_real()))
    return torch.where(number > 0, added / number.clamp(min=1), torch.nan).to(entries.dtype)


def _prod(entries: Tensor, groups: Groups) -> Tensor:
    return kernels.segment_product(entries, groups).to(entries.dtype if _inexact(entries) else torch.int64)


def _logsumexp(entries: Tensor, groups: Groups) -> Tensor:
    entries = entries if _inexact(entries) else entries.to(torch.get_default_dtype())
    return kernels.segment_logsumexp(entries, groups).to(entries.dtype)


def _norm(entries: Tensor, groups: Groups, ord: Any = 2, p: Any = None, out: None = None) -> Tensor:
    """Vector norm; its gradient at a zero vector is 0, as in torch."""
    order = ord if p is None else p
    entries = entries if _inexact(entries) else entries.to(torch.get_default_dtype())
    found = kernels.segment_norm(entries, groups, 2.0 if order in (None, "fro") else float(order))
    return found.to(entries.dtype.to_real() if entries.is_complex() else entries.dtype)


def _truth(result: Tensor, entries: Tensor) -> Tensor:
    return result.to(torch.uint8) if entries.dtype == torch.uint8 else result


def _variance(deviation: bool = False, with_mean: bool = False) -> Formula:
    def formula(
        entries: Tensor, groups: Groups, unbiased: Any = None, correction: float | None = None
    ) -> Any:
        if correction is None:
            correction = 1 if unbiased is None or unbiased else 0
        found: Any = kernels.segment_variance(entries, groups, correction)
        if deviation:  # the gradient of the root at 0 is 0, as in torch.std
            flat = found == 0
            found = torch.where(flat, 0, torch.where(flat, 1, found).sqrt())
        found = found.to(entries.dtype.to_real() if entries.is_complex() else entries.dtype)
        if correction >= 1:
            found = Entries(found, groups.count() > correction)
        return (found, _mean(entries, groups)) if with_mean else found

    return formula


def _mean(entries: Tensor, groups: Groups) -> Tensor:
    return kernels.segment_mean(entries, groups).to(entries.dtype)


def _extremum(largest: bool) -> Formula:
    """Largest or smallest entry; its gradient is shared equally by ties; at a NaN it is 0 / 0, as in torch."""

    def formula(entries: Tensor, groups: Groups) -> Tensor:
        plain = entries.detach()
        best = kernels.segment_extremum(plain, groups, largest)
        if not (entries.requires_grad or (entries.is_floating_point() and forward_mode_is_active())):
            return best
        attained, broken = plain == best[groups.index], best.isnan()[groups.index]
        share = groups.sum(attained.to(best.dtype)).to(best.dtype)[groups.index]
        weight = torch.where(broken, torch.nan, 1 / share.clamp(min=1))
        picked = groups.sum(torch.where(attained | broken, entries * weight, 0)).to(best.dtype)
        # the exact value with the gradient of the mean of the ties; infinite ones have no rounding to correct
        return torch.where(best.isfinite(), best + (picked - picked.detach()), picked)

    return formula


def _aminmax(entries: Tensor, groups: Groups) -> Any:
    kind: Any = torch.return_types.aminmax
    return kind([_extremum(largest)(entries, groups) for largest in (False, True)])


def _winners(
    input: StoredEntries, dim: int | None, largest: bool
) -> tuple[Tensor, Tensor, Groups, tuple[int, ...]]:
    """The first winner of each group: its value and its position; and the groups."""
    rank = len(input.shape)
    if dim is not None and as_dim(dim, rank) == rank:  # 0 and -1 of a scalar
        dim = None
    dims = as_dims(dim, rank)
    if dim is not None and dims[0] < len(input.sizes):  # dense dimensions are kept
        groups, entries, _ = grouped(input, dim)
        position = input.pattern.coordinates()[dims[0]]
    else:
        coordinates, entries, sizes = exploded(input)
        groups = group(coordinates, sizes, dims)
        position = ravel_multi_index(coordinates, sizes) if dim is None else coordinates[dims[0]]
    position = position.reshape(-1, *(1,) * (entries.ndim - 1)).expand(entries.shape)
    plain = entries.detach()
    winning = (plain == kernels.segment_extremum(plain, groups, largest)[groups.index]) | (plain != plain)
    furthest = torch.iinfo(torch.int64).max
    first = kernels.segment_extremum(torch.where(winning, position, furthest), groups, False)
    chosen = winning & (position == first[groups.index])
    found = groups.sum(torch.where(chosen, entries, torch.zeros_like(entries)))  # one entry per group
    return found.to(entries.dtype), first, groups, dims


def _position(largest: bool) -> Formula:
    return lambda input, dim: _winners(input, dim, largest)[1:]


def _value_and_position(largest: bool) -> Formula:
    """``torch.max`` of a dimension; of everything it is an extremum."""
    kind: Any = torch.return_types.max if largest else torch.return_types.min

    def formula(input: StoredEntries, dim: int) -> Any:
        value, first, groups, dims = _winners(input, dim, largest)
        return kind([value, first]), groups, dims

    return formula


#: The other arguments of :func:`reduction`.
REDUCTIONS: dict[str, tuple[Any, ...]] = {
    "sum": (_sum,),
    "mean": (_mean,),
    "nansum": (lambda entries, groups: _sum(torch.where(entries.isnan(), 0, entries), groups),),
    "nanmean": (_mean_without_nan,),
    "prod": (_prod,),
    "logsumexp": (_logsumexp,),
    "any": (lambda entries, groups: _truth(groups.sum((entries != 0).long()) > 0, entries),),
    "all": (lambda entries, groups: _truth(groups.sum((entries == 0).long()) == 0, entries),),
    "count_nonzero": (lambda entries, groups: groups.sum((entries != 0).long()),),
    "var": (_variance(), VARIANCE),
    "std": (_variance(deviation=True), VARIANCE),
    "var_mean": (_variance(with_mean=True), VARIANCE),
    "std_mean": (_variance(deviation=True, with_mean=True), VARIANCE),
    "amax": (_extremum(True),),
    "amin": (_extremum(False),),
    "aminmax": (_aminmax,),
    "argmax": (_position(True), "input dim keepdim", True),
    "argmin": (_position(False), "input dim keepdim", True),
    "max": (_value_and_position(True), "input dim keepdim", True),
    "min": (_value_and_position(False), "input dim keepdim", True),
    "linalg.vector_norm": (_norm, "input ord dim keepdim"),
    "linalg.norm": (_norm, "input ord dim keepdim"),
    "norm": (_norm, "input p dim keepdim"),
}


def _within(x: StoredEntries, dim: Any, run: Callable[[Tensor, Groups], Tensor]) -> StoredEntries:
    """``run`` on entries and their groups along ``dim``; one value comes of each entry."""
    groups, entries, _ = grouped(x, dim)
    return StoredEntries(x.pattern.gathered(run(entries, groups).reshape(x.entries.shape)), x.pattern)


def _normalize(input: StoredEntries, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> StoredEntries:
    """Divide by the p-norm of the entries, or by ``eps`` if that is larger."""

    def run(entries: Tensor, groups: Groups) -> Tensor:
        real = entries.dtype.to_real() if entries.is_complex() else entries.dtype
        norms = kernels.segment_norm(entries, groups, float(p)).to(real).clamp_min(eps)
        return (entries / kernels.segment_expand(norms, groups)).to(entries.dtype)

    return _within(input, dim, run)


def _along(logarithm: bool, negated: bool = False) -> Callable[..., StoredEntries]:
    def body(
        input: StoredEntries, dim: int, *rest: Any, dtype: Any = None, _stacklevel: int = 3
    ) -> StoredEntries:
        for extra in rest:  # F.softmax(x, dim, _stacklevel, dtype)
            dtype = extra if isinstance(extra, torch.dtype) else dtype
        values = input.values if dtype is None else input.values.to(dtype)
        if not values.is_floating_point():
            torch.softmax(values, 0)  # torch raises the error
        x = StoredEntries(-values if negated else values, input.pattern)
        return _within(x, dim, lambda entries, groups: kernels.segment_softmax(entries, groups, logarithm))

    return body


NORMALIZED: dict[str, Callable[..., Any]] = {
    "nn.functional.normalize": named(_normalize),
    "softmax": named(_along(logarithm=False)),
    "log_softmax": named(_along(logarithm=True)),
    "nn.functional.softmin": named(_along(logarithm=False, negated=True)),
}
