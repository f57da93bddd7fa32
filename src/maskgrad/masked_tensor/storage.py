"""Layouts of MaskedTensors: reading entries on any layout, and changing the layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.masked_tensor.other_packages import notice_packages
from maskgrad.masked_tensor.sparse_leaves import entries_of, lines_in, torch_tensor_of
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.patterns import CompressedPattern, CoordinatePattern, JaggedPattern
from maskgrad.patterns.checks import check_pattern, check_places
from maskgrad.patterns.conversion import BLOCKED, LAYOUTS, pattern_of_places
from maskgrad.patterns.stored import ravel_multi_index, read_places, unravel_index
from maskgrad.semantics.stored.entries import densified, exploded

__all__ = ["from_sparse", "methods"]


def from_sparse(t: Tensor, *, check_invariants: bool = True) -> MaskedTensor:
    """Create a MaskedTensor from a sparse tensor of torch: stored entries are specified, including stored zeros.

    Args:
        t: COO (hybrid or not, coalesced or not: duplicates are summed, as in torch), CSR, CSC, BSR or BSC
            tensor, batched if torch allows it.
        check_invariants: check that indices are in bounds, in order and without duplicates. False trusts ``t``.

    Returns:
        MaskedTensor of the same layout, shape and dtype; memory is shared for CSR, CSC, BSR and BSC.
        Gradient: reaches ``t`` and accumulates in ``t.grad``, in the layout and pattern of ``t`` (COO and CSR). A
        backward pass with ``create_graph=True`` raises an error there (make the values the leaf, as for leaves of other
        layouts: ``from_sparse(t.detach()).requires_grad_()``).

    Raises:
        TypeError: ``t`` is not a sparse tensor, or a CSC, BSR or BSC leaf that requires grad.
        IndexError: an index lies outside the shape.
        ValueError: the indices contradict each other or the values.

    Dense equivalent: ``mg.masked(t.to_dense(), pattern of t)``.

    Example:
        >>> import torch, maskgrad as mg
        >>> mg.from_sparse(torch.tensor([[0., 2.], [3., 0.]]).to_sparse()).sum(0).tolist()
        [3.0, 2.0]

    Source: https://docs.pytorch.org/docs/stable/sparse.html (the layouts).
    """
    notice_packages()
    if not isinstance(t, Tensor) or t.layout not in LAYOUTS or t.layout == torch.strided:
        found = f"layout {t.layout}" if isinstance(t, Tensor) else type(t).__name__
        raise TypeError(
            f"t must be a sparse torch.Tensor (COO, CSR, CSC, BSR or BSC), found {found}; use mg.masked"
        )
    if t.layout == torch.sparse_coo:
        return _from_coordinates(t, check_invariants)
    # detached again, values are not a view of a sparse tensor: torch.compile cannot trace such views
    values = t.detach().values().detach()
    sizes = tuple(t.shape[: t.ndim - t.dense_dim()])
    at = len(sizes) - 1
    blocksize = (values.shape[at], values.shape[at + 1]) if t.layout in BLOCKED else None
    pattern = CompressedPattern(t.layout, *lines_in(t), sizes, blocksize)
    if check_invariants:
        check_pattern(pattern, values)
    return MaskedTensor(entries_of(t, values, pattern), pattern)


def _from_coordinates(t: Tensor, check_invariants: bool) -> MaskedTensor:
    sizes = tuple(t.shape[: t.sparse_dim()])
    # detached again, values are not a view of a sparse tensor: torch.compile cannot trace such views
    indices, values = t._indices(), t.detach()._values().detach()
    if check_invariants:
        check_places(indices, sizes)
    keys = ravel_multi_index(indices, sizes)
    if bool((keys[1:] <= keys[:-1]).any()):  # the flag is never trusted
        distinct, values = kernels.merge_rows(keys, values, math.prod(sizes), "sum")
        indices = unravel_index(distinct, sizes)
    pattern = CoordinatePattern(indices, sizes)
    return MaskedTensor(entries_of(t, values, pattern), pattern)


def _places(x: MaskedTensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    stored = stored_of(x)
    if stored is not None:
        return exploded(stored)
    values, mask = x._dense()
    coordinates = mask.nonzero().T.contiguous()
    return coordinates, read_places(values, coordinates), tuple(values.shape)


def _rows(
    coordinates: Tensor, entries: Tensor, shape: tuple[int, ...], listed: int
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Return indices in the first ``listed`` dimensions, each with its (complete) entry over the others."""
    sizes, dense = shape[:listed], shape[listed:]
    order = torch.argsort(ravel_multi_index(coordinates, shape))
    distinct, counts = torch.unique(ravel_multi_index(coordinates[:listed], sizes), return_counts=True)
    partial = counts != math.prod(dense)
    if bool(partial.any()):
        first = unravel_index(distinct[partial][:1], sizes)[:, 0].tolist()
        raise ValueError(
            f"an index of the first {listed} dimensions stores all {math.prod(dense)} entries of the others, but "
            f"{int(partial.sum())} indices are partially specified, the first at {tuple(first)}; use "
            "x.to_sparse(), which lists each entry"
        )
    return unravel_index(distinct, sizes), entries[order].reshape(len(distinct), *dense), sizes


def _listed_dims(shape: torch.Size, sparse_dim: Any, dense_dim: int | None, layout: torch.layout) -> int:
    name, least = ("sparse_dim", 1) if dense_dim is None else ("dense_dim", 0)
    found = sparse_dim if dense_dim is None else dense_dim
    most = len(shape) if dense_dim is None else len(shape) - (1 if layout == torch.sparse_coo else 2)
    if sparse_dim is not None and dense_dim is not None:
        raise ValueError(f"pass sparse_dim or dense_dim, not both; found {sparse_dim} and {dense_dim}")
    if layout != torch.sparse_coo and dense_dim is None:
        raise ValueError(f"sparse_dim is for torch.sparse_coo; for {layout}, pass dense_dim= instead")
    if not least <= found <= most:
        raise ValueError(
            f"{name} must be from {least} to {most} for shape {tuple(shape)} and {layout}, found {found}"
        )
    return int(found) if dense_dim is None else len(shape) - int(found)


def to_sparse(
    self: MaskedTensor,
    sparse_dim: int | torch.layout | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: tuple[int, int] | None = None,
    dense_dim: int | None = None,
) -> MaskedTensor:
    """Convert to a sparse layout by the pattern, never by values: specified zeros are kept.

    Args:
        self: a MaskedTensor of any layout.
        sparse_dim: for a COO tensor, the number of leading dimensions given by coordinates; each index
            then stores all entries of the others. None: all. A layout may be passed here, too.
        layout: ``torch.sparse_coo`` (default), ``sparse_csr``, ``sparse_csc``, ``sparse_bsr`` or ``sparse_bsc``.
        blocksize: height and width of the blocks, for the last two.
        dense_dim: number of trailing dimensions stored for each index.

    Returns:
        MaskedTensor of that layout. Gradient: passes to the same entries.

    Raises:
        ValueError: the layout is unknown, or does not fit (see the message): blocks or indices that are partially
            specified, sizes that the block size does not divide, batches with different numbers of entries.

    Example:
        >>> import torch, maskgrad as mg
        >>> x = mg.masked(torch.tensor([[0., 2.], [3., 4.]]), torch.tensor([[True, True], [False, False]]))
        >>> x.to_sparse().sum().item(), x.to_sparse().num_specified().item()
        (2.0, 2)
    """
    if isinstance(sparse_dim, torch.layout):
        sparse_dim, layout = None, sparse_dim
    if layout is None:
        layout = torch.sparse_coo
    listed = None
    if sparse_dim is not None or dense_dim is not None:
        listed = _listed_dims(self.shape, sparse_dim, dense_dim, layout)
    stored = stored_of(self)
    if isinstance(self._pattern, JaggedPattern) and (
        layout == torch.jagged or not self._pattern.is_canonical
    ):
        if layout == torch.jagged:
            return self
        stored = None
    same = stored is not None and listed in (None, len(stored.sizes))
    if same and layout == self.layout and blocksize in (None, self._pattern.facts().blocksize):
        return self
    # dense dimensions may be kept
    if same and stored is not None and (layout == torch.sparse_coo or len(stored.sizes) > 1):
        coordinates, entries, sizes = stored.pattern.coordinates(), stored.entries, stored.pattern.sizes
    else:
        coordinates, entries, sizes = _places(self)
        if listed is not None and listed < len(sizes):
            coordinates, entries, sizes = _rows(coordinates, entries, sizes, listed)
    pattern, order = pattern_of_places(coordinates, sizes, layout, tuple(blocksize) if blocksize else None)  # type: ignore[arg-type]
    return MaskedTensor(pattern.gathered(entries[order]), pattern)


def to_dense(self: MaskedTensor) -> MaskedTensor:
    """Convert to a Boolean mask, which allocates the full shape. Gradient: passes to the same entries."""
    stored = stored_of(self)
    return self if stored is None else of_entries(*densified(stored))


def to_sparse_tensor(self: MaskedTensor) -> Tensor:
    """Convert to a sparse tensor of torch with the same layout and pattern (COO if the entries have a Boolean mask).

    Gradient: passes to the values, once: the second derivative of torch's constructors is wrong (COO) or missing.
    """
    stored = stored_of(self)
    if stored is None or self.layout == torch.jagged:  # which sparse tensors of torch do not support
        stored = stored_of(to_sparse(self))
    assert stored is not None
    return torch_tensor_of(stored.values, stored.pattern)


def compressed(self: MaskedTensor) -> Tensor:
    """Return the specified entries as a 1-D plain tensor, in row-major order; its length depends on the mask."""
    if stored_of(self) is None:
        values, mask = self._dense()
        return values.masked_select(mask)
    coordinates, entries, sizes = _places(self)
    keys = ravel_multi_index(coordinates, sizes)
    if isinstance(self._pattern, JaggedPattern) and self._pattern.is_canonical:
        return entries
    return entries[torch.argsort(keys)]


def num_specified(self: MaskedTensor) -> Tensor:
    """Return the number of specified entries, a 0-dim int64 tensor, which does not synchronize with the device."""
    stored = stored_of(self)
    if stored is None:
        mask = self._dense()[1]
        return kernels.masked_count(mask, tuple(range(mask.ndim)), False)
    return torch.tensor(stored.values.numel(), device=stored.values.device)


SPARSE = COO, CSR, CSC, BSR, BSC = LAYOUTS[1:]

#: Method: its layouts, and a function of values and pattern.
READ: dict[str, tuple[tuple[torch.layout, ...], Callable[[Tensor, Any], Any]]] = {
    "values": ((*SPARSE, torch.jagged), lambda values, _: values),
    "indices": ((COO,), lambda _, pattern: pattern.indices),
    "crow_indices": ((CSR, BSR), lambda _, pattern: pattern.pointers),
    "col_indices": ((CSR, BSR), lambda _, pattern: pattern.positions),
    "ccol_indices": ((CSC, BSC), lambda _, pattern: pattern.pointers),
    "row_indices": ((CSC, BSC), lambda _, pattern: pattern.positions),
    "is_coalesced": ((COO,), lambda _, __: True),
    "coalesce": ((COO,), MaskedTensor),
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
                f"x.{name}() needs layout {' or '.join(map(str, layouts))}, found {self.layout}; use "
                f"x.to_sparse(layout={layouts[0]}).{name}(), or x.compressed() for the specified entries"
            )
        return read(stored.values, stored.pattern)

    method.__doc__ = (
        f"``torch.Tensor.{name}``: the memory of the tensor itself; indices must not be modified."
    )
    return method


def sparse_dim(self: MaskedTensor) -> int:
    """Return the number of sparse dimensions (``torch.Tensor.sparse_dim``); 0 with a Boolean mask."""
    stored = stored_of(self)
    if stored is None:
        return 0
    return len(stored.sizes) if self.layout == torch.sparse_coo else 2


def dense_dim(self: MaskedTensor) -> int:
    """Return the number of dimensions of each stored value (``torch.Tensor.dense_dim``); all with a Boolean mask."""
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


def methods() -> dict[str, Callable[..., Any]]:
    """Return the methods of MaskedTensor defined here, by name, with those of torch's sparse tensors."""
    written = to_sparse, to_dense, to_sparse_tensor, compressed, num_specified, sparse_dim, dense_dim
    found: dict[str, Callable[..., Any]] = {name: _reader(name) for name in READ}
    found |= {f"to_{str(layout).removeprefix('torch.')}": _converter(layout) for layout in SPARSE}
    for name, method in found.items():
        method.__name__, method.__qualname__ = name, f"MaskedTensor.{name}"
    return found | {method.__name__: method for method in written}
