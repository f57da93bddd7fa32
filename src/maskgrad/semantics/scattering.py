"""Writing by position: what is written becomes specified as the source is, what is not written stays as it was.

Functions with ``reduce`` or ``accumulate`` combine what meets at a place: by deletion, over the specified contributions
(the old entry is one of them if it takes part). An unspecified position writes nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation, functions_named
from maskgrad.semantics.joins import mask_of
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPERATIONS", "combine"]

#: For each operation: torch's names for its arguments, and which of them bring entries.
WRITES: dict[str, tuple[str, str]] = {
    "scatter": ("input dim index src reduce value", "input src value"),
    "index_copy": ("input dim index source", "input source"),
    "index_fill": ("input dim index value", "input value"),
    "index_put": ("input indices values accumulate unsafe", "input values"),
    "put": ("input index source accumulate", "input source"),
    "masked_scatter": ("input mask source", "input source"),
    "select_scatter": ("input src dim index", "input src"),
    "slice_scatter": ("input src dim start end step", "input src"),
    "diagonal_scatter": ("input src offset dim1 dim2", "input src"),
}
#: The arguments that are positions, and may be masked.
POSITIONS = ("index",)


def plain(argument: Any) -> Any:
    """The values of a masked argument."""
    return argument.values if isinstance(argument, Entries) else argument


def _mask(argument: Any) -> Any:
    return mask_of(argument) if isinstance(argument, (Entries, Tensor)) else True


def _spare_slice(arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Send unspecified positions to one more slice, which is cut off again afterwards."""
    dim, index = arguments["dim"], arguments["index"]
    x = arguments["input"] if isinstance(arguments["input"], Entries) else _entries(arguments["input"])
    size = x.values.shape[dim]
    spare = x.values.narrow(dim, 0, 1) if size else x.values.new_zeros([s or 1 for s in x.values.shape])
    wider = Entries(
        torch.cat([x.values, torch.zeros_like(spare)], dim),
        torch.cat([x.mask, torch.zeros_like(spare, dtype=torch.bool)], dim),
    )
    positions = torch.where(index.mask, index.values, size)
    return {**arguments, "input": wider, "index": positions}, size


def _entries(x: Tensor) -> Entries:
    return Entries(x, mask_of(x))


def _write(name: str) -> Callable[..., Any]:
    names, bringing = WRITES[name]
    torch_function = getattr(torch, name)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        arguments = bound(names, args, kwargs)
        if name == "scatter":
            # the fourth argument may be a number
            if "src" in arguments and not isinstance(arguments["src"], (Entries, Tensor)):
                arguments["value"] = arguments.pop("src")
            if arguments.get("reduce") is not None:
                return _legacy_scatter(arguments)
        if arguments.pop("accumulate", False):
            return _accumulate(torch_function, arguments, names)
        if isinstance(arguments.get("index"), Entries):
            if "dim" not in arguments:
                raise TypeError(
                    f"{name} needs plain positions, found a MaskedTensor as index; use index.compressed() and the "
                    "entries of the source at index.mask"
                )
            arguments, size = _spare_slice(arguments)
            written = body(function, (), arguments)
            dim = arguments["dim"]
            return Entries(written.values.narrow(dim, 0, size), written.mask.narrow(dim, 0, size))
        values = {k: plain(v) for k, v in arguments.items()}
        masks = {k: _mask(v) if k in bringing.split() else v for k, v in values.items()}
        masks |= {k: _mask(v) for k, v in arguments.items() if k in bringing.split()}
        return Entries(torch_function(**values), torch_function(**masks))

    return body


def _accumulate(function: Callable[..., Any], arguments: dict[str, Any], names: str) -> Entries:
    """``index_put`` and ``put`` with accumulate=True: sums over the specified contributions."""
    source = "values" if "values" in names.split() else "source"
    old, new = arguments["input"], arguments[source]
    rest = {k: v for k, v in arguments.items() if k not in ("input", source)}
    safe_old, safe_new = (
        torch.where(_mask(o), plain(o), 0) if isinstance(o, Entries) else o for o in (old, new)
    )
    values = function(**{"input": safe_old, source: safe_new, "accumulate": True}, **rest)
    counts = function(
        **{"input": mask_of(old).float(), source: mask_of(new).float(), "accumulate": True}, **rest
    )
    return Entries(values, counts > 0)


def _legacy_scatter(arguments: dict[str, Any]) -> Entries:
    """``scatter(…, reduce="add" | "multiply")``."""
    source = arguments.get("src", arguments.get("value"))
    index = arguments["index"]
    if not isinstance(source, (Entries, Tensor)):
        source = torch.full_like(plain(index), source, dtype=plain(arguments["input"]).dtype)  # type: ignore[arg-type]
    reduce = {"add": "sum", "multiply": "prod"}[arguments["reduce"]]
    return combine(arguments["input"], arguments["dim"], index, source, reduce, True)


def combine(x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool) -> Entries:
    """Combine the specified contributions that meet at each place; without one, the old entry stays."""
    if isinstance(index, Entries):
        arguments, size = _spare_slice({"input": x, "dim": dim, "index": index})
        wide = combine(arguments["input"], dim, arguments["index"], source, reduce, include_self)
        return Entries(wide.values.narrow(dim, 0, size), wide.mask.narrow(dim, 0, size))
    x, source = (o if isinstance(o, Entries) else _entries(o) for o in (x, source))
    neutral = _neutral(reduce, x.values.dtype)
    start = torch.where(x.mask, x.values, neutral) if include_self else torch.full_like(x.values, neutral)
    brought = torch.where(source.mask, source.values, neutral)
    # scatter_reduce knows "sum"; a mean is the sum over the specified contributions divided by their number
    values = torch.scatter_reduce(
        start, dim, index, brought, "sum" if reduce == "mean" else reduce, include_self=True
    )
    zeros = torch.zeros_like(x.values, dtype=torch.int64)
    arrived = zeros.scatter_add(dim, index, source.mask.long())
    total = arrived + x.mask if include_self else arrived
    if reduce == "mean":
        divisor = total.clamp(min=1)
        exact = values.is_floating_point() or values.is_complex()
        values = values / divisor if exact else torch.div(values, divisor, rounding_mode="floor")
    if include_self:
        return Entries(values.to(x.values.dtype), total > 0)
    return Entries(torch.where(arrived > 0, values.to(x.values.dtype), x.values), x.mask | (arrived > 0))


def _neutral(reduce: str, dtype: torch.dtype) -> float | int | bool:
    from maskgrad.semantics.extrema import lowest

    if reduce in ("amax", "amin"):
        return lowest(dtype, largest=reduce == "amax")
    return 1 if reduce == "prod" else 0


def scatter_reduce(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``scatter_reduce`` with all five reductions."""
    a = bound("input dim index src reduce", args, kwargs)
    return combine(a["input"], a["dim"], a["index"], a["src"], a["reduce"], a.get("include_self", True))


def scatter_add(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``scatter_add``: the sum of the specified contributions and, if specified, the old entry."""
    a = bound("input dim index src", args, kwargs)
    return combine(a["input"], a["dim"], a["index"], a["src"], "sum", True)


def _along_dim(x: Any, dim: int, index: Any, source: Any) -> tuple[Any, int, Any, Any]:
    """Spell a 1-D index of slices as one position for each entry of the source; scalars become vectors."""
    if plain(x).ndim == 0:
        x, source = (
            Entries(o.values.reshape(1), o.mask.reshape(1)) if isinstance(o, Entries) else o.reshape(1)
            for o in (x, source)
        )
        dim = 0
    shape = [1] * plain(source).ndim
    shape[dim] = -1
    size = plain(source).shape

    def spell(positions: Tensor) -> Tensor:
        return positions.reshape(shape).expand(size)

    return (
        x,
        dim,
        Entries(spell(index.values), spell(index.mask)) if isinstance(index, Entries) else spell(index),
        source,
    )


def index_add(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``index_add``: ``alpha`` times the specified slices of the source are added."""
    a = bound("input dim index source", args, kwargs)
    alpha, source = a.get("alpha", 1), a["source"]
    scaled = Entries(source.values * alpha, source.mask) if isinstance(source, Entries) else source * alpha
    return _indexed(a, scaled, "sum", True)


def index_reduce(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``index_reduce`` with its four reductions."""
    a = bound("input dim index source reduce", args, kwargs)
    return _indexed(a, a["source"], a["reduce"], a.get("include_self", True))


def _indexed(a: dict[str, Any], source: Any, reduce: str, include_self: bool) -> Entries:
    shape = plain(a["input"]).shape
    result = combine(*_along_dim(a["input"], a["dim"], a["index"], source), reduce, include_self)
    return Entries(result.values.reshape(shape), result.mask.reshape(shape))


def _record(name: str, body: Callable[..., Any], pattern: str, gradient: str) -> Operation:
    functions, in_place, methods = functions_named(name)
    return Operation(name, "indexing", functions, body, pattern, gradient, in_place=in_place, methods=methods)


WRITTEN = "as the source where written, else as before"
COMBINED = "specified where a specified contribution arrives or was"
OPERATIONS: tuple[Operation, ...] = (
    *(
        _record(name, _write(name), WRITTEN, "to the source where written, else to the entries kept")
        for name in WRITES
    ),
    _record(
        "scatter_reduce", scatter_reduce, COMBINED, "that of the reduction, to its specified contributions"
    ),
    _record("scatter_add", scatter_add, COMBINED, "to every specified contribution"),
    _record("index_add", index_add, COMBINED, "alpha to every specified contribution"),
    _record("index_reduce", index_reduce, COMBINED, "that of the reduction, to its specified contributions"),
)
