"""The methods of torch's sparse tensors: a MaskedTensor of a sparse layout has them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor.storage import to_sparse
from maskgrad.masked_tensor.tensor import MaskedTensor, stored_of
from maskgrad.patterns import CoordinatePattern
from maskgrad.patterns.conversion import LAYOUTS

__all__ = ["install"]

COO, CSR, CSC, BSR, BSC = LAYOUTS[1:]
SPARSE = LAYOUTS[1:]

#: Method: the layouts that have it, and what it reads of values and pattern.
READ: dict[str, tuple[tuple[torch.layout, ...], Callable[[Tensor, Any], Any]]] = {
    "values": ((*SPARSE, torch.jagged), lambda values, _: values),
    "indices": ((COO,), lambda _, pattern: pattern.indices),
    "crow_indices": ((CSR, BSR), lambda _, pattern: pattern.pointers),
    "col_indices": ((CSR, BSR), lambda _, pattern: pattern.positions),
    "ccol_indices": ((CSC, BSC), lambda _, pattern: pattern.pointers),
    "row_indices": ((CSC, BSC), lambda _, pattern: pattern.positions),
    "is_coalesced": ((COO,), lambda _, __: True),
    "_nnz": (SPARSE, lambda _, pattern: _listed(pattern).shape[-1]),
}


def _listed(pattern: Any) -> Tensor:
    return pattern.indices if isinstance(pattern, CoordinatePattern) else pattern.positions


def _reader(name: str) -> Callable[[MaskedTensor], Any]:
    layouts, read = READ[name]

    def method(self: MaskedTensor) -> Any:
        stored = stored_of(self)
        if stored is None or self.layout not in layouts:
            raise RuntimeError(
                f"x.{name}() reads layout {' or '.join(map(str, layouts))}, found {self.layout}; write "
                f"x.to_sparse(layout={layouts[0]}).{name}(), or x.compressed() for the specified entries"
            )
        return read(stored.values, stored.pattern)

    method.__doc__ = f"``torch.Tensor.{name}``: the memory of the tensor itself; indices must not be written."
    return method


def coalesce(self: MaskedTensor) -> MaskedTensor:
    """``torch.Tensor.coalesce``: the tensor itself, for no place is stored twice."""
    if self.layout != torch.sparse_coo:
        raise RuntimeError(
            f"x.coalesce() needs layout torch.sparse_coo, found {self.layout}; no entry of a MaskedTensor is ever "
            "stored twice: use x itself, or x.to_sparse()"
        )
    return self


def sparse_dim(self: MaskedTensor) -> int:
    """``torch.Tensor.sparse_dim``: how many dimensions are listed by their coordinates; 0 of a Boolean mask."""
    stored = stored_of(self)
    if stored is None:
        return 0
    return len(stored.sizes) if self.layout == torch.sparse_coo else 2


def dense_dim(self: MaskedTensor) -> int:
    """``torch.Tensor.dense_dim``: how many dimensions each stored value has; all of a Boolean mask."""
    stored = stored_of(self)
    return len(self.shape) - (0 if stored is None else len(stored.sizes))


def _converter(layout: torch.layout) -> Callable[..., MaskedTensor]:
    name = str(layout).removeprefix("torch.")

    def plain(self: MaskedTensor, dense_dim: int | None = None) -> MaskedTensor:
        return to_sparse(self, layout=layout, dense_dim=dense_dim)

    def blocked(self: MaskedTensor, blocksize: tuple[int, int], dense_dim: int | None = None) -> MaskedTensor:
        return to_sparse(self, layout=layout, blocksize=blocksize, dense_dim=dense_dim)

    method = blocked if layout in (BSR, BSC) else plain
    method.__doc__ = f"``x.to_sparse(layout=torch.{name})``, as ``torch.Tensor.to_{name}``."
    return method


def install() -> None:
    """Put these methods on MaskedTensor."""
    methods: dict[str, Callable[..., Any]] = {name: _reader(name) for name in READ}
    methods |= {f"to_{str(layout).removeprefix('torch.')}": _converter(layout) for layout in SPARSE}
    methods |= {method.__name__: method for method in (coalesce, sparse_dim, dense_dim)}
    for name, method in methods.items():
        method.__name__ = name
        method.__qualname__ = f"MaskedTensor.{name}"
        setattr(MaskedTensor, name, method)
