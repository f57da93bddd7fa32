"""Writing by position: what is written becomes specified as the source is, what is not written stays as it was.

Functions with ``reduce`` or ``accumulate`` combine what meets at a place: by deletion, over the specified contributions
(the old entry is one of them if it takes part). An unspecified position writes nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.accumulation import add_up, combine
from maskgrad.semantics.entries import Entries, Operand, as_entries, mask_of, rearranged, safe, values_of
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable


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
#: The arguments that have an entry for each position: a 0-d one has a single entry.
ONE_EACH = ("index", "src", "source")


def _mask(argument: Any) -> Any:
    return mask_of(argument) if isinstance(argument, (Entries, Tensor)) else True


def _vector(x: Any) -> Any:
    """A tensor without dimensions as one with a single entry."""
    is_number = isinstance(x, (Entries, Tensor)) and not values_of(x).ndim
    return rearranged(x, lambda part: part.reshape(1)) if is_number else x


def _with_spare_slice(
    x: Any, dim: int, index: Entries, write: Callable[[Entries, Tensor], Entries]
) -> Entries:
    """Send unspecified positions to one more slice, which is cut off again afterwards."""
    shape = values_of(x).shape
    values, mask = as_entries(_vector(x))
    size = values.shape[dim]
    extra = list(values.shape)
    extra[dim] = 1
    wider = Entries(
        torch.cat([values, values.new_zeros(extra)], dim), torch.cat([mask, mask.new_zeros(extra)], dim)
    )
    written = write(wider, torch.where(index.mask, index.values, size))
    return Entries(
        written.values.narrow(dim, 0, size).reshape(shape), written.mask.narrow(dim, 0, size).reshape(shape)
    )


def _select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """``torch.select_scatter``, which under vmap sends a wrong gradient to ``src``."""
    size = input.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"select_scatter(): index must be from {-size} to {size - 1}, found {index}")
    start = index % size
    return torch.slice_scatter(input, src.unsqueeze(dim), dim, start, start + 1)


#: Functions called in place of torch's.
MENDED: dict[str, Callable[..., Tensor]] = {"select_scatter": _select_scatter}


def _write(name: str) -> Callable[..., Any]:
    names, bringing = WRITES[name]
    torch_function = MENDED.get(name) or getattr(torch, name)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
        arguments = bound(names, args, kwargs)
        if name == "scatter":
            # the fourth argument may be a number
            if "src" in arguments and not isinstance(arguments["src"], (Entries, Tensor)):
                arguments["value"] = arguments.pop("src")
            if arguments.get("reduce") is not None:
                return _legacy_scatter(arguments)
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
        # where two write to one place torch sends the gradient to both, specified or not
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
    """Combine what meets at the positions; unspecified positions take part nowhere."""
    if isinstance(index, Entries):
        return _with_spare_slice(
            x,
            dim,
            _vector(index),
            lambda wider, positions: combine(
                wider, dim, positions, as_entries(_vector(source)), reduce, include_self
            ),
        )
    return combine(as_entries(x), dim, index, as_entries(source), reduce, include_self)


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
            f"index_reduce needs a vector of positions and a source of one slice for each, of shape {wanted}; found "
            f"positions of shape {list(values_of(index).shape)} and a source of shape {list(values_of(source).shape)}"
        )
    one_each = [1] * len(wanted)
    one_each[dim] = -1

    def spelt(positions: Tensor) -> Tensor:
        """A position for each entry of the source."""
        return positions.reshape(one_each).expand(wanted)

    everywhere = rearranged(index, lambda part: spelt(part if part.dtype == torch.bool else part.long()))
    result = _combine(x, dim, everywhere, source, reduce, include_self)
    return Entries(result.values.reshape(shape), result.mask.reshape(shape))


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
