"""Which dimensions may have another size in each run, said for arguments and needed for their plain tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.export.ports import Arguments, Place, Ports

__all__ = ["axis_names", "batch_dimensions", "counted_in_a_run", "given_dimensions", "varying_sizes"]

Dimensions = dict[int, Any]


def batch_dimensions(ports: Ports, tensors: Sequence[Tensor]) -> list[Dimensions]:
    """The first dimension of everything, and the number of stored entries on sparse layouts, if the model lets it."""
    auto = torch.export.Dim.AUTO
    found: list[Dimensions] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        if place.kind == "stored":
            found += _of_stored(place, group, auto)
        else:
            found += [{0: auto} if t.ndim else {} for t in group]
    return found


def given_dimensions(
    given: Any, ports: Ports, tensors: Sequence[Tensor], arguments: Arguments
) -> list[Dimensions]:
    """What ``given`` says about arguments, in the form of ``torch.export.export``, for their plain tensors.

    One entry for each positional argument in order, or by name for any of them: for a tensor or MaskedTensor None, or
    names for its dimensions (by number, or in order); for containers the same structure.
    """
    specs = _by_argument(given, arguments)
    dims: dict[str, Any] = {}
    found: list[Dimensions] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        if not group:
            continue
        which, first, *rest = place.path
        spec, where = specs.get((which, first)), f"dynamic_shapes[{arguments[which, first]!r}]"
        for step in rest:
            spec, where = _inside(spec, step, where), f"{where}[{step!r}]"
        if place.kind == "stored":
            chosen = _dimensions(spec, 1, where, dims)
            found += _of_stored(place, group, chosen.get(0))
        else:
            found += [_dimensions(spec, group[0].ndim, where, dims) for _ in group]
    return found


def _by_argument(given: Any, arguments: Arguments) -> dict[tuple[str, str], Any]:
    """The entries of ``given`` under the first two steps of the path of what they are about."""
    names = {name: key for key, name in arguments.items()}
    if isinstance(given, Mapping):
        unknown = [key for key in given if key not in names]
        if unknown:
            raise ValueError(
                f"dynamic_shapes names {unknown[0]!r}, which is not an argument; expected some of {sorted(names)}"
            )
        return {names[key]: spec for key, spec in given.items()}
    positional = [key for key in arguments if key[0] == "0"]
    if not isinstance(given, (tuple, list)):
        raise TypeError(
            'dynamic_shapes must be "batch", None, a dict by argument names or a tuple in the order of args, '
            f"found {given!r}"
        )
    if len(given) != len(positional):
        raise ValueError(
            f"dynamic_shapes must have one entry for each of the {len(positional)} positional arguments, "
            f"found {len(given)}; a MaskedTensor is one argument, None leaves one as it is"
        )
    return dict(zip(positional, given, strict=True))


def _inside(spec: Any, step: str, where: str) -> Any:
    """The part of ``spec`` for one member of a container."""
    if spec is None:
        return None
    if isinstance(spec, Mapping):
        for key in spec:
            if str(key) == step:
                return spec[key]
        return None
    if isinstance(spec, (tuple, list)) and step.isdigit() and int(step) < len(spec):
        return spec[int(step)]
    raise ValueError(
        f"{where} must have the structure of the argument, which has a member {step!r}; found {spec!r}"
    )


def _dimensions(spec: Any, number: int, where: str, dims: dict[str, Any]) -> Dimensions:
    """The entry for one tensor as a dict; names become dimensions, the same name the same one."""
    if spec is None:
        return {}
    if isinstance(spec, (tuple, list)):
        if len(spec) != number:
            raise ValueError(f"{where} must have an entry for each of {number} dimensions, found {spec!r}")
        spec = dict(enumerate(spec))
    if not isinstance(spec, Mapping):
        raise TypeError(f"{where} must be a dict from dimensions to names, a tuple, or None; found {spec!r}")
    found: Dimensions = {}
    for at, dim in spec.items():
        if not isinstance(at, int) or isinstance(at, bool) or not -number <= at < number:
            raise ValueError(f"{where} must number dimensions between 0 and {number - 1}, found {at!r}")
        if dim is None:
            continue
        if isinstance(dim, str):
            if not dim.isidentifier():
                raise ValueError(f"{where} must call a dimension by an identifier, found {dim!r}")
            dim = dims.setdefault(dim, torch.export.Dim(dim))  # noqa: PLW2901
        found[at % number] = dim
    return found


def _of_stored(place: Place, group: Sequence[Tensor], entries: Any) -> list[Dimensions]:
    """``entries`` where the number of stored entries stands: the sizes themselves are part of the pattern."""
    assert place.facts is not None
    if entries is None:
        return [{} for _ in group]
    if place.facts.layout == "sparse_coo":
        return [{0: entries}, {1: entries}]
    batch = len(place.facts.sizes) - 2
    return [{batch: entries}, {}, {batch: entries}]


def varying_sizes(program: torch.export.ExportedProgram, ports: Ports) -> list[dict[int, int]]:
    """For each size that may vary by itself: which inputs have it, and along which dimension.

    A size of which another input has a function, such as twice as much, is left out.
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
    """Readable names for sizes that vary, by their symbols in the program.

    Those that the caller chose; else ``batch`` if there is one size, ``x_entries`` on sparse layouts, ``x_dim_0``.
    """
    stored = [place.kind == "stored" for place in ports.places for _ in place.roles]
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
            elif of_stored:
                # data and indices have one name: they belong together, even if the graph does not care
                entries.setdefault(symbol, f"{name.rpartition('_')[0] or name}_entries")
            else:
                sizes.setdefault(tied.get(symbol, symbol), f"{name}_dim_{at}")
    if len(sizes) == 1:
        sizes = dict.fromkeys(sizes, "batch")
    sizes |= {mask: sizes[data] for mask, data in tied.items() if data in sizes}
    return entries | sizes | chosen


def _tied(program: torch.export.ExportedProgram, ports: Ports) -> dict[str, str]:
    """The symbols of masks where data has another one: a graph that broadcasts them does not know that they are one."""
    found: dict[str, str] = {}
    for place, shapes in zip(ports.places, ports.groups(_input_shapes(program)), strict=True):
        if place.kind == "masked":
            for data, mask in zip(*shapes, strict=True):
                one, other = _symbol(data), _symbol(mask)
                if one is not None and other is not None and one != other:
                    found.setdefault(other, found.get(one, one))
    return found


def _symbol(size: Any) -> str | None:
    """The name of a size that may vary by itself."""
    return str(size.node.expr) if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol else None


def counted_in_a_run(outputs: Iterable[Any]) -> dict[str, str]:
    """Readable names for sizes that depend on values, such as how many entries a sparse result has."""
    found: dict[str, str] = {}
    for value in outputs:
        for at, size in enumerate(value.shape or ()):
            if re.fullmatch(r"u\d+", str(size)):
                found.setdefault(str(size), f"{value.name}_dim_{at}")
    return found


def _input_shapes(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    wanted = program.graph_signature.user_inputs
    placeholders = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    shapes = {name: tuple(placeholders[name].shape) for name in map(str, wanted)}
    return [shapes[str(name)] for name in wanted]
