"""Dynamic dimensions: given for arguments, needed for their plain tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.export.ports import Ports, argument_of

__all__ = ["axis_names", "batch_dimensions", "given_dimensions", "varying_sizes"]

Dimensions = dict[int, Any]


def batch_dimensions(ports: Ports, tensors: Sequence[Tensor]) -> list[Dimensions]:
    """Return the first dimension of all tensors, and the number of stored entries, as dynamic."""
    auto = torch.export.Dim.AUTO
    found: list[Dimensions] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        found += _of_stored(group, auto) if place.is_stored else [{0: auto} if t.ndim else {} for t in group]
    return found


def given_dimensions(
    given: Any, ports: Ports, tensors: Sequence[Tensor], arguments: Sequence[str], keywords: Iterable[str]
) -> list[Dimensions]:
    """Convert ``given`` for arguments to the form of ``torch.export.export`` for their plain tensors.

    For a tensor or MaskedTensor None, or names of its dimensions by number; for containers the same structure.
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            f'dynamic_shapes must be "batch", None or a dict by argument names, found {given!r}; write '
            '{"x": {0: "batch"}}'
        )
    unknown = set(given) - {*arguments, *keywords}
    if unknown:
        raise ValueError(
            f"dynamic_shapes names {min(unknown, key=str)!r}, which is not an argument; expected some of "
            f"{sorted([*arguments, *keywords])}"
        )
    dims: dict[str, Any] = {}
    found: list[Dimensions] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        name = argument_of(place.path, arguments)
        spec, where = given.get(name), f"dynamic_shapes[{name!r}]"
        for key in place.path[2:]:
            spec, where = _inside(spec, key, where), where + pytree.keystr((key,))
        number = 1 if place.is_stored else group[0].ndim
        chosen = _dimensions(spec, number, where, dims)
        found += _of_stored(group, chosen.get(0)) if place.is_stored else [dict(chosen) for _ in group]
    return found


def _inside(spec: Any, key: Any, where: str) -> Any:
    """Return the part of ``spec`` for one member of a container."""
    if spec is None:
        return None
    step = next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name))
    if isinstance(spec, Mapping):
        return spec.get(step)
    if isinstance(spec, (tuple, list)) and isinstance(step, int) and step < len(spec):
        return spec[step]
    raise ValueError(
        f"{where} must have the structure of the argument, which has a member {step!r}; found {spec!r}"
    )


def _dimensions(spec: Any, number: int, where: str, dims: dict[str, Any]) -> Dimensions:
    """Return the entry for one tensor as a dict; equal names become one dimension."""
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        raise TypeError(f"{where} must be a dict from dimensions to names, or None; found {spec!r}")
    found: Dimensions = {}
    for at, dim in spec.items():
        if not isinstance(at, int) or isinstance(at, bool) or not -number <= at < number:
            raise ValueError(f"{where} must use dimensions between 0 and {number - 1}, found {at!r}")
        if isinstance(dim, str):
            if not dim.isidentifier():
                raise ValueError(f"{where} must use identifiers as names of dimensions, found {dim!r}")
            dim = dims.setdefault(dim, torch.export.Dim(dim))  # noqa: PLW2901
        if dim is not None:
            found[at % number] = dim
    return found


def _of_stored(group: Sequence[Tensor], entries: Any) -> list[Dimensions]:
    """Return ``entries`` for the dimension of stored entries: the sizes themselves are part of the pattern."""
    if entries is None:
        return [{} for _ in group]
    last = group[-1].ndim - 1  # of coordinates, or of positions, which may have leading batch dimensions
    return [{0: entries}, {1: entries}] if len(group) == 2 else [{last: entries}, {}, {last: entries}]


def varying_sizes(program: torch.export.ExportedProgram, ports: Ports) -> list[dict[int, int]]:
    """Return, for each size that may vary freely, the inputs that have it, each with the dimension.

    A size is omitted if another one depends on it, such as twice the size.
    """
    found: dict[str, dict[int, int]] = {}
    derived: set[str] = set()
    tied = _tied(program, ports)
    for i, shape in enumerate(_input_shapes(program)):
        for at, size in enumerate(shape):
            symbol = _symbol(size)
            if symbol is not None:
                found.setdefault(tied.get(symbol, symbol), {}).setdefault(i, at)
            elif isinstance(size, torch.SymInt):
                derived |= {str(symbol) for symbol in size.node.expr.free_symbols}
    return [places for symbol, places in found.items() if symbol not in derived]


def axis_names(
    program: torch.export.ExportedProgram,
    ports: Ports,
    names: Sequence[str],
    dimensions: Sequence[Dimensions],
) -> dict[str, str]:
    """Return readable names for dynamic sizes, by their symbols in the program.

    The names from the caller; else ``batch`` if there is one size, ``x_entries`` on sparse layouts, ``x_dim_0``.
    """
    stored = [place.is_stored for place in ports.places for _ in place.roles]
    tied = _tied(program, ports)
    chosen: dict[str, str] = {}
    entries: dict[str, str] = {}
    sizes: dict[str, str] = {}
    for name, of_stored, shape, dims in zip(names, stored, _input_shapes(program), dimensions, strict=True):
        for at, size in enumerate(shape):
            symbol, dim = _symbol(size), dims.get(at)
            if symbol is None:
                continue
            if isinstance(dim, torch.export.Dim):
                chosen.setdefault(symbol, str(dim.__name__))
            elif of_stored:  # values and indices have one name, even if the graph does not need it
                entries.setdefault(symbol, f"{name.rpartition('_')[0] or name}_entries")
            else:
                sizes.setdefault(tied.get(symbol, symbol), f"{name}_dim_{at}")
    if len(sizes) == 1:
        sizes = dict.fromkeys(sizes, "batch")
    sizes |= {mask: sizes[data] for mask, data in tied.items() if data in sizes}
    return entries | sizes | chosen


def _tied(program: torch.export.ExportedProgram, ports: Ports) -> dict[str, str]:
    """Return the symbols of data by those of its mask, if they differ: a graph may broadcast one to the other."""
    found: dict[str, str] = {}
    for place, shapes in zip(ports.places, ports.groups(_input_shapes(program)), strict=True):
        if place.is_masked:
            for data, mask in zip(*(map(_symbol, shape) for shape in shapes), strict=True):
                if data is not None and mask is not None and data != mask:
                    found.setdefault(mask, found.get(data, data))
    return found


def _symbol(size: Any) -> str | None:
    """Return the name of a dynamic size."""
    return str(size.node.expr) if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol else None


def _input_shapes(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    placeholders = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return [tuple(placeholders[str(name)].shape) for name in program.graph_signature.user_inputs]
