"""MaskedTensors as plain tensors by name, for files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.tensor import rebuild_stored, stored_of

__all__ = ["from_tensors", "to_tensors"]

#: Separator of the name and the part; names of modules and parameters contain dots.
MARK = "::"
STRIDED = ("values", "mask")


def to_tensors(named: Mapping[str, Tensor | MaskedTensor]) -> dict[str, Tensor]:
    """Replace MaskedTensors by plain tensors, for safetensors, tensordict and similar libraries.

    ``x`` becomes ``x::values`` and ``x::mask``, both of its shape; on a sparse or jagged layout
    ``x::sparse_csr.values``, ``x::sparse_csr.0`` and so on, with the sizes in ``x::sparse_csr.sizes``. Plain tensors
    keep their names.

    Args:
        named: tensors by name, such as ``module.state_dict()``.

    Returns:
        A dict of plain tensors, contiguous where converted, that do not share memory with the masks.
        Entries under a Boolean mask are 0 in ``x::values``: no garbage is written to a file.

    Gradient:
        Passes to the specified entries.

    Raises:
        TypeError: ``named`` is not a mapping, a name is not a string, or something is not a tensor.
        ValueError: a name already contains ``::``.

    Dense equivalent: ``dict(named)``.

    Example:
        >>> x = mg.from_nan(torch.tensor([1.0, float("nan")]))
        >>> parts = mg.interop.to_tensors({"x": x, "bias": torch.zeros(1)})
        >>> parts
        {'x::values': tensor([1., 0.]), 'x::mask': tensor([ True, False]), 'bias': tensor([0.])}
        >>> mg.interop.from_tensors(parts)["x"]
        masked([1., --])

    Source: the format of safetensors, names and plain dense tensors, https://github.com/huggingface/safetensors
    """
    found: dict[str, Tensor] = {}
    for name, tensor in _items(named, "to_tensors"):
        if MARK in name:
            raise ValueError(
                f"name {name!r} must not contain {MARK!r}, which marks the parts of a MaskedTensor"
            )
        if isinstance(tensor, MaskedTensor):
            found.update({f"{name}{MARK}{part}": t for part, t in _parts(tensor).items()})
        elif isinstance(tensor, Tensor):
            found[name] = tensor
        else:
            raise TypeError(f"{name!r} must be a Tensor or MaskedTensor, found {type(tensor).__name__}")
    return found


def from_tensors(named: Mapping[str, Tensor]) -> dict[str, Tensor | MaskedTensor]:
    """Rebuild MaskedTensors from the result of :func:`to_tensors`.

    Args:
        named: plain tensors by name: a dict, the result of ``safetensors.torch.load_file``, or a TensorDict.

    Returns:
        A dict; names without ``::`` are unchanged. Values and Boolean masks share memory with the input.

    Gradient:
        Passes to ``x::values`` at the specified entries.

    Raises:
        TypeError: ``named`` is not a mapping, or a part is not a tensor or has a wrong dtype.
        ValueError: a part is missing, unknown, or contradicts the others; files are not trusted.

    Dense equivalent: ``dict(named)``.

    Example:
        >>> parts = {"x::values": torch.tensor([1.0, 0.0]), "x::mask": torch.tensor([True, False])}
        >>> mg.interop.from_tensors(parts)
        {'x': masked([1., --])}

    Source: see :func:`to_tensors`.
    """
    found: dict[str, Any] = {}
    parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in _items(named, "from_tensors"):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name!r} must be a Tensor, found {type(tensor).__name__}")
        base, mark, part = name.partition(MARK)
        if mark:
            parts[base][part] = tensor
            found.setdefault(base, None)
        else:
            found[name] = tensor
    for base, tensors in parts.items():
        if found[base] is not None:
            raise ValueError(
                f"{base!r} is a plain tensor, but has the parts {', '.join(map(repr, sorted(tensors)))}; rename one"
            )
        found[base] = _together(base, tensors)
    return found


def _items(named: Any, function: str) -> list[tuple[str, Any]]:
    if not callable(getattr(named, "items", None)):
        raise TypeError(
            f"mg.interop.{function} expects tensors by name, such as a dict, found {type(named).__name__}; give a "
            'tensor a name: {"x": x}'
        )
    items = list(named.items())
    for name, _ in items:
        if not isinstance(name, str):
            raise TypeError(f"names must be strings, found {name!r}; call the function for each nested dict")
    return items


def _parts(x: MaskedTensor) -> dict[str, Tensor]:
    stored = stored_of(x)
    if stored is None:
        return {
            "values": x.filled(False).contiguous(),  # which keeps every dtype, Booleans included
            "mask": x.mask.clone(memory_format=torch.contiguous_format),
        }
    layout, sizes, blocksize = stored.pattern.facts()
    named = {"values": stored.values.contiguous()}
    for i, tensor in enumerate(stored.pattern.tensors()):
        named[str(i)] = tensor.clone(memory_format=torch.contiguous_format)
    named["sizes"] = torch.tensor([*sizes, *(blocksize or ())])
    return {f"{layout}.{part}": tensor for part, tensor in named.items()}


def _together(name: str, parts: dict[str, Tensor]) -> MaskedTensor:
    layouts = {part.partition(".")[0] if "." in part else "" for part in parts}
    layout = layouts.pop()
    if layouts or (not layout and set(parts) != set(STRIDED)):
        raise ValueError(
            f"{name!r} must have the parts {' and '.join(f'{name}{MARK}{part}' for part in STRIDED)}, or those of one "
            f"other layout, found {', '.join(f'{name}{MARK}{part}' for part in sorted(parts))}"
        )
    if not layout:
        return masked(parts["values"], parts["mask"])
    inner = {part.partition(".")[2]: tensor for part, tensor in parts.items()}
    numbers = [str(i) for i in range(len(inner) - 2)]
    if set(inner) != {"values", "sizes", *numbers}:
        raise ValueError(
            f"{name!r} must have the parts values, sizes and 0, 1, … of layout {layout}, found "
            f"{', '.join(sorted(inner))}"
        )
    if inner["sizes"].ndim != 1 or inner["sizes"].is_floating_point() or inner["sizes"].is_complex():
        raise ValueError(f"'{name}{MARK}{layout}.sizes' must be a list of integers, found {inner['sizes']}")
    sizes = inner["sizes"].tolist()
    blocksize = sizes[-2:] if layout in ("sparse_bsr", "sparse_bsc") else None
    facts = (layout, sizes[:-2] if blocksize else sizes, blocksize)
    return rebuild_stored(inner["values"], facts, tuple(inner[number] for number in numbers))
