"""Writing by position: written entries take the mask of the source, others are unchanged.

Functions with ``reduce`` or ``accumulate`` combine entries at one position, by deletion: over the specified
contributions (the old entry is one of them, unless ``include_self=False``). Without any, the old entry is kept. An
unspecified position writes nothing. Half precision is combined in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.extrema import lowest
from maskgrad.mode import forward_mode_is_active
from maskgrad.semantics.entries import (
    Entries,
    Operand,
    as_entries,
    converted,
    filler_as,
    mask_of,
    rearranged,
    safe,
    values_of,
    widened,
)
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.indexing import plain_index
from maskgrad.semantics.signatures import bound

#: For each operation: torch's names for its arguments, and those that contain entries.
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
#: Arguments with one entry per position: a 0-dim one has a single entry.
ONE_EACH = ("index", "src", "source")


def _mask(argument: Any) -> Any:
    return mask_of(argument) if isinstance(argument, (Entries, Tensor)) else True


def _vector(x: Any) -> Any:
    """View a 0-dim tensor as one with a single entry."""
    is_number = isinstance(x, (Entries, Tensor)) and not values_of(x).ndim
    return rearranged(x, lambda part: part.reshape(1)) if is_number else x


def _with_spare_slice(
    x: Any, dim: int, index: Entries, write: Callable[[Entries, Tensor], Entries]
) -> Entries:
    """Redirect unspecified positions to an extra slice, which is removed afterwards."""
    shape = values_of(x).shape
    values, mask = as_entries(_vector(x))
    size = values.shape[dim]
    more = [0, 0] * (values.ndim - 1 - dim % values.ndim) + [0, 1]
    wider = Entries(F.pad(values, more), F.pad(mask, more))
    written = write(wider, torch.where(index.mask, index.values, size))
    return Entries(*(part.narrow(dim, 0, size).reshape(shape) for part in written))


def _select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """``torch.select_scatter``, which gives ``src`` a wrong gradient under vmap."""
    size = input.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"select_scatter(): index must be from {-size} to {size - 1}, found {index}")
    start = index % size
    return torch.slice_scatter(input, src.unsqueeze(dim), dim, start, start + 1)


#: Functions called in place of torch's.
FIXED: dict[str, Callable[..., Tensor]] = {"select_scatter": _select_scatter}


def _write(name: str) -> Callable[..., Any]:
    names, bringing = WRITES[name]
    torch_function = FIXED.get(name) or getattr(torch, name)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        arguments = bound(names, args, kwargs)
        if name == "scatter":
            # the fourth argument may be a scalar
            if "src" in arguments and not isinstance(arguments["src"], (Entries, Tensor)):
                arguments["value"] = arguments.pop("src")
            if arguments.get("reduce") is not None:
                return _legacy_scatter(arguments)
        if "indices" in arguments:
            arguments["indices"] = plain_index(arguments["indices"])
        index = arguments.get("index")
        if isinstance(index, Entries) and "dim" not in arguments:
            raise TypeError(
                f"{name} needs plain positions, found a MaskedTensor as index; use index.compressed() and the "
                "entries of the source at index.mask"
            )
        if arguments.pop("accumulate", False):
            return _accumulate(torch_function, arguments, names)
        if isinstance(index, Entries):
            arguments |= {key: _vector(arguments[key]) for key in ONE_EACH if key in arguments}
            return _with_spare_slice(
                arguments["input"],
                arguments["dim"],
                arguments["index"],
                lambda x, positions: body(function, (), {**arguments, "input": x, "index": positions}),
            )
        # with duplicate positions torch passes the gradient to both, specified or not
        values = {k: values_of(v) if k == "input" else safe(v) for k, v in arguments.items()}
        masks = {k: _mask(v) if k in bringing.split() else v for k, v in values.items()}
        masks |= {k: _mask(v) for k, v in arguments.items() if k in bringing.split()}
        return Entries(torch_function(**values), torch_function(**masks))

    return body


def _accumulate(function: Callable[..., Any], arguments: dict[str, Any], names: str) -> Entries:
    """``index_put`` and ``put`` with accumulate=True: sums over the specified contributions."""
    source = "values" if "values" in names.split() else "source"
    rest = {k: v for k, v in arguments.items() if k not in ("input", source)}
    return add_up(
        as_entries(arguments["input"]),
        as_entries(arguments[source]),
        lambda old, new: function(**{"input": old, source: new, "accumulate": True}, **rest),
    )


def _legacy_scatter(arguments: dict[str, Any]) -> Entries:
    """``scatter(…, reduce="add" | "multiply")``."""
    source = arguments.get("src", arguments.get("value"))
    index = arguments["index"]
    if not isinstance(source, (Entries, Tensor)):
        source = torch.full_like(values_of(index), source, dtype=values_of(arguments["input"]).dtype)  # type: ignore[arg-type]
    reduce = {"add": "sum", "multiply": "prod"}[arguments["reduce"]]
    return _combine(arguments["input"], arguments["dim"], index, source, reduce)


def _combine(x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Entries:
    """Combine entries at the same position; unspecified positions are ignored."""
    if isinstance(index, Entries):
        brought = as_entries(_vector(source))
        return _with_spare_slice(
            x, dim, _vector(index), lambda x, at: combine(x, dim, at, brought, reduce, include_self)
        )
    return combine(as_entries(x), dim, index, as_entries(source), reduce, include_self)


def add_up(old: Entries, new: Entries, add: Callable[..., Tensor], **scale: Any) -> Entries:
    """Add the specified contributions to the specified entries with ``add``, which gets ``scale`` only for values."""
    values = add(*(widened(safe(x)) for x in (old, new)), **scale)
    counts = add(old.mask.int(), new.mask.int())
    return Entries(values.to(old.values.dtype), counts > 0)


class _Extremum(torch.autograd.Function):
    """Extremum of the entries at one position; its gradient is shared equally among specified ties.

    torch also counts an excluded old entry among the ties, and fillers.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        old: Tensor, known: Tensor, dim: int, index: Tensor, new: Tensor, arriving: Tensor, reduce: str
    ) -> Tensor:
        neutral = lowest(old.dtype, largest=reduce == "amax")
        start, brought = torch.where(known, old, neutral), torch.where(arriving, new, neutral)
        return torch.scatter_reduce(start, dim, index, brought, reduce)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        old, known, ctx.dim, index, new, arriving, _ = inputs
        ctx.save_for_backward(old, known, index, new, arriving, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        old, known, index, new, arriving, best = ctx.saved_tensors
        first = (known & (old == best)).to(grad.dtype)
        others = (arriving & (new == best.gather(ctx.dim, index))).to(grad.dtype)
        # as integers: PyTorch scatters no Booleans on a GPU
        met = known.to(torch.uint8).scatter_reduce(ctx.dim, index, arriving.to(torch.uint8), "amax")
        # a specified NaN equals nothing: torch's gradient is then 0 / 0 at all entries there
        share = grad / torch.where(met > 0, first.scatter_add(ctx.dim, index, others), 1)
        to_old = torch.where(known, first * share, 0)
        to_new = torch.where(arriving, others * share.gather(ctx.dim, index), 0)
        return to_old, None, None, None, to_new, None, None


def combine(x: Entries, dim: int, index: Tensor, source: Entries, reduce: str, include_self: bool) -> Entries:
    """``scatter_reduce``: ``reduce`` is "sum", "prod", "mean", "amax" or "amin"."""
    if source.values.shape != index.shape and source.values.ndim == index.ndim:
        # the source may be larger than the index
        used = tuple([slice(size) for size in index.shape])
        source = Entries(source.values[used], source.mask[used])
    kind, old, new = x.values.dtype, widened(x.values), widened(source.values)
    known = x.mask if include_self else torch.zeros_like(x.mask)
    arrived = torch.zeros_like(old, dtype=torch.int32).scatter_add(dim, index, source.mask.int())
    if reduce in ("amax", "amin"):
        # A Function with a forward-mode derivative could not be compiled; torch's own shares with fillers too.
        compute: Any = _Extremum.forward if forward_mode_is_active() else _Extremum.apply
        values = compute(old, known, dim, index, new, source.mask, reduce)
    else:
        neutral = filler_as(old.dtype, 1 if reduce == "prod" else 0)
        start, brought = torch.where(known, old, neutral), torch.where(source.mask, new, neutral)
        if reduce == "prod":
            if forward_mode_is_active():  # PyTorch would lose the tangents
                raise NotImplementedError(
                    'reduce="prod" has no forward-mode derivative; use the backward pass, torch.func.vjp or grad'
                )
            values = torch.scatter_reduce(start, dim, index, brought, reduce)
        else:  # the mean that torch would take counts fillers
            values = torch.scatter_add(start, dim, index, brought)
    if reduce == "mean":
        divisor = (arrived + known).clamp(min=1)
        exact = values.is_floating_point() or values.is_complex()
        values = values / divisor if exact else torch.div(values, divisor, rounding_mode="floor")
    values, mask = values.to(kind), known | (arrived > 0)
    if include_self:
        return Entries(values, mask)
    return Entries(torch.where(mask, values, x.values), mask | x.mask)


def scatter_reduce(
    input: Operand, dim: int, index: Operand, src: Operand, reduce: str, *, include_self: bool = True
) -> Entries:
    """``scatter_reduce`` with all five reductions."""
    return _combine(input, dim, index, src, reduce, include_self)


def scatter_add(input: Operand, dim: int, index: Operand, src: Operand) -> Entries:
    """``scatter_add``: the sum of the specified contributions and, if specified, the old entry."""
    return _combine(input, dim, index, src, "sum")


def index_add(input: Operand, dim: int, index: Operand, source: Operand, **scale: Any) -> Entries:
    """``index_add``: ``alpha`` times the specified slices of the source are added."""
    brought = as_entries(source)

    def add(x: Entries, positions: Tensor) -> Entries:
        return add_up(
            x, brought, lambda old, new, **scale: torch.index_add(old, dim, positions, new, **scale), **scale
        )

    if isinstance(index, Entries):
        brought = _vector(brought)
        return _with_spare_slice(input, dim, _vector(index), add)
    return add(as_entries(input), index)


def index_reduce(
    input: Operand, dim: int, index: Operand, source: Operand, reduce: str, *, include_self: bool = True
) -> Entries:
    """``index_reduce`` with its four reductions."""
    shape, x, source = values_of(input).shape, _vector(input), _vector(source)
    wanted = list(values_of(x).shape)
    wanted[dim] = values_of(index).numel()
    if list(values_of(source).shape) != wanted or values_of(index).ndim > 1:
        raise IndexError(
            f"index_reduce needs a vector of positions and a source with one slice for each, of shape {wanted}; found "
            f"positions of shape {list(values_of(index).shape)} and a source of shape {list(values_of(source).shape)}"
        )
    one_each = [1] * len(wanted)
    one_each[dim] = -1
    everywhere = rearranged(index, lambda part: part.reshape(one_each).expand(wanted))
    if values_of(index).dtype != torch.bool:  # which torch refuses
        everywhere = converted(everywhere, torch.int64)
    result = _combine(x, dim, everywhere, source, reduce, include_self)
    return Entries(*(part.reshape(shape) for part in result))


WRITTEN = "as the source where written, else as before"
KEPT = "to the source where written, else to the entries kept"
COMBINED = "specified where a specified contribution arrives or was"
REDUCED = "that of the reduction, to its specified contributions"

OPERATIONS = (
    *(record(name, "indexing", _write(name), WRITTEN, KEPT) for name in WRITES),
    of_rule(scatter_reduce, "accumulation", COMBINED, REDUCED),
    of_rule(scatter_add, "accumulation", COMBINED, "to every specified contribution"),
    of_rule(index_add, "accumulation", COMBINED, "alpha to every specified contribution"),
    of_rule(index_reduce, "accumulation", COMBINED, REDUCED),
)
