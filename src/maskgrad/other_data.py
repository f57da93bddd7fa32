"""Data of other libraries: what makes a tensor or a MaskedTensor of it without losing its mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.mode import TRACED, mode

__all__ = ["conversion_of", "has_own_mask", "is_sparse", "mask_conversion_of"]

#: By package; `{}` is the argument.
BY_PACKAGE = {
    "pandas": "mg.from_pandas({})",
    "polars": "mg.from_arrow({})",
    "pyarrow": "mg.from_arrow({})",
    "scipy": "mg.from_scipy({})",
    "awkward": "mg.from_arrow(ak.to_arrow({}, extensionarray=False))",
    "xarray": "mg.from_nan(torch.tensor({}.to_numpy()))",
}


def has_own_mask(x: Tensor) -> bool:
    """Return whether a torch.Tensor is a nested one, or one of torch.masked: its values alone are half of it."""
    # the compiler traces neither names of modules nor tensors of torch.masked
    if type(x) is Tensor or mode() in TRACED:
        return x.is_nested
    return x.is_nested or type(x).__module__.startswith("torch.masked")


def is_sparse(x: Tensor) -> bool:
    """Return whether this is a tensor of PyTorch of a sparse layout."""
    return x.layout not in (torch.strided, torch.jagged)


def conversion_of(data: Any, name: str) -> str:
    """Return an expression that converts ``data``, the argument ``name``."""
    package = type(data).__module__.partition(".")[0]
    if package in BY_PACKAGE:
        return BY_PACKAGE[package].format(name)
    if package == "numpy" and hasattr(data, "mask"):
        return f"mg.from_numpy({name})"
    if package == "numpy" and data.dtype.kind == "O":
        return f"mg.from_nan(torch.as_tensor({name}.astype(float)))"
    if isinstance(data, Tensor):
        if type(data).__module__.startswith("torch.masked"):
            return f"mg.from_torch_masked({name})"
        if data.is_nested:
            return (
                f"mg.from_nested({name})"
                if data.layout is torch.jagged
                else f"mg.from_sequences({name}.unbind())"
            )
        return f"mg.from_sparse({name}), whose stored entries are specified, or {name}.to_dense()"
    if type(data).__name__ == "PackedSequence":
        return f"mg.from_lengths(*torch.nn.utils.rnn.pad_packed_sequence({name}, batch_first=True))"
    if isinstance(data, Mapping):
        return f"{name}[{next(iter(data), 'x')!r}], one of its values"
    return _conversion_of_list(data, name) if isinstance(data, (list, tuple)) else f"torch.as_tensor({name})"


def _conversion_of_list(data: list[Any] | tuple[Any, ...], name: str) -> str:
    lengths = {
        len(part) if hasattr(part, "__len__") and getattr(part, "ndim", None) != 0 else None for part in data
    }
    is_ragged = len(lengths) > 1 and None not in lengths
    if _has_none(data):
        array = f"mg.from_nan(torch.as_tensor(np.array({name}, float)))"
        return f"mg.from_arrow(pa.array({name}))" if is_ragged else array
    parts = [part for part in data if not isinstance(part, (int, float, list, tuple))]
    foreign = [part for part in parts if not _is_plain_or_ours(part)]
    conversion = conversion_of(foreign[0], "s") if foreign else ""
    if conversion.startswith("mg."):
        return f"torch.stack([{conversion} for s in {name}])"
    if parts and not foreign and not is_ragged:
        return f"torch.stack({name})"
    return (
        f"mg.from_sequences([torch.as_tensor(s) for s in {name}])"
        if is_ragged
        else f"torch.as_tensor({name})"
    )


def _is_plain_or_ours(part: Any) -> bool:
    if type(part).__module__.startswith("maskgrad"):
        return True
    return isinstance(part, Tensor) and not is_sparse(part) and not has_own_mask(part)


def _has_none(data: Any) -> bool:
    return data is None or (isinstance(data, (list, tuple)) and any(map(_has_none, data)))


def mask_conversion_of(mask: Any, name: str) -> str:
    """Return an expression that makes a mask of ``mask``, the argument ``name``; a missing entry is False."""
    package = type(mask).__module__.partition(".")[0]
    if package == "numpy" and hasattr(mask, "filled"):
        return f"torch.as_tensor({name}.filled(False))"
    if hasattr(mask, "filled"):
        return f"{name}.filled(False)"
    if isinstance(mask, Tensor):
        return conversion_of(mask, name) + ".filled(False)"
    if isinstance(mask, Mapping):
        return f"{name}[{next(iter(mask), 'attention_mask')!r}], one of its values"
    if hasattr(mask, "to_numpy"):
        return f"torch.tensor({name}.to_numpy())"
    return f"torch.as_tensor(np.array({name}, bool))" if _has_none(mask) else f"torch.as_tensor({name})"
