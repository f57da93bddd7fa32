"""Merge duplicate entries of sparse COO tensors: in float32 for half precision, with checked indices, and fast.

Shapes: ``n`` stored entries, ``m <= n`` distinct ones, ``s`` sparse dimensions, ``*dense`` the shape of one
entry. An entry's *position* is its row-major index over the sparse dimensions (int64).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.patterns.stored import read_places

__all__ = ["coalesce", "coalesce_gradients", "is_coalesced", "merge_entries"]

Reduce = Literal["sum", "mean", "amax", "amin"]
_REDUCTIONS = get_args(Reduce)
#: of sizes, in Python's unbounded integers
prod = math.prod


def coalesce(t: Tensor, reduce: Reduce = "sum") -> Tensor:
    r"""Merge the entries of a sparse COO tensor that have the same index.

    .. math:: c_i = \operatorname{reduce}_{k:\, \mathrm{index}_k = i} v_k

    Args:
        t: sparse COO tensor, any number of sparse and dense dimensions, any dtype, coalesced or not.
        reduce: ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"`` of the entries with the same index.

    Returns:
        A COO tensor of the same shape and dtype, its indices sorted and distinct, ``is_coalesced()`` True.
            Entries of half precision are merged in float32 and rounded once. Stored zeros stay stored. If ``t``
            is already coalesced, the result shares its memory.

    Gradient:
            For ``"sum"`` and ``"mean"``, once only: the gradient of ``torch.sparse_coo_tensor`` ignores its
            dependence on the incoming gradient, so a second derivative would be silently wrong, and a backward
            pass with ``create_graph=True`` is refused. :func:`merge_entries` works on plain values and can be
            differentiated any number of times, for every ``reduce``.

    Raises:
        TypeError: ``t`` is not a sparse COO tensor, or ``reduce`` has no meaning for its dtype.
        ValueError: ``reduce`` is unknown or, for ``"amax"`` and ``"amin"``, ``t`` has duplicates and needs a
            gradient.
        IndexError: an index lies outside the shape (torch's constructor does not check).
        RuntimeError: in a backward pass with ``create_graph=True``.

    Dense equivalent: ``torch.zeros(...).index_add`` (sum), ``index_reduce`` (mean, amax, amin).

    Example:
        >>> t = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3., 4., 5.], (2, 3), check_invariants=True)
        >>> mg.sparse.coalesce(t).values()
        tensor([3., 9.])

    Source: ``torch.Tensor.coalesce``, which adds float16 in float16 and sums on one core.
    """
    _require_coo(t, "coalesce")
    _require_reduction(reduce, t)
    if t.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _Coalesce.apply(t, reduce))  # type: ignore[no-untyped-call]
    return _coalesce(t, reduce)[0]


def merge_entries(
    indices: Tensor, values: Tensor, size: Sequence[int], reduce: Reduce = "sum"
) -> tuple[Tensor, Tensor]:
    r"""Merge values that have the same index, on plain tensors; differentiable any number of times.

    .. math:: c_i = \operatorname{reduce}_{k:\, \mathrm{index}_k = i} v_k

    Args:
        indices: (s, n) integer tensor, or (n,) for one sparse dimension.
        values: ``(n, *dense)``, any dtype; half precision is merged in float32.
        size: the s sizes of the sparse dimensions.
        reduce: ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"``.

    Returns:
        The distinct indices in row-major order, (s, m) or (m,), and their merged values ``(m, *dense)``.

    Gradient:
        With respect to ``values``; entries that tie for ``amax`` or ``amin`` share it evenly, as in
        ``torch.amax``.

    Raises:
        TypeError: ``indices`` is not an integer tensor, or ``reduce`` has no meaning for the dtype.
        ValueError: ``reduce`` is unknown, or the shapes do not fit together.
        IndexError: an index lies outside ``size``.

    Dense equivalent: ``torch.zeros(...).index_add`` (sum), ``index_reduce`` (mean, amax, amin).

    Example:
        >>> v = torch.tensor([3., 4., 5.], requires_grad=True)
        >>> at, merged = mg.sparse.merge_entries(torch.tensor([0, 1, 1]), v * v, (2,))
        >>> merged.tolist()
        [9.0, 41.0]
        >>> gradient, = torch.autograd.grad(merged.square().sum(), v, create_graph=True)
        >>> torch.autograd.grad(gradient.sum(), v)
        (tensor([108., 452., 524.]),)

    Source: ``torch.Tensor.coalesce``; its second derivative through ``torch.sparse_coo_tensor`` is wrong.
    """
    _require_reduction(reduce, values)
    table = indices if indices.dim() == 2 else indices.unsqueeze(0)
    if table.dim() != 2 or table.shape[0] != len(size) or table.shape[1] != len(values):
        raise ValueError(
            f"merge_entries: indices of shape {tuple(indices.shape)} do not fit {len(values)} values and "
            f"{len(size)} sizes; expected ({len(size)}, {len(values)})"
        )
    position = positions(table, size, "merge_entries: indices")
    distinct, merged = kernels.merge_rows(position, values, prod(size), reduce)
    found = places(distinct, size)
    return (found if indices.dim() == 2 else found[0]), merged


def coalesce_gradients(model_or_params: torch.nn.Module | Tensor | Iterable[Tensor]) -> None:
    """Merge every sparse COO gradient of a model, in place of the old one.

    Args:
        model_or_params: a module, a parameter, or parameters in any iterable. Dense gradients, and
            parameters without a gradient, are not changed.

    Gradient:
        The new gradients are detached; they represent the same tensors as the old ones.

    Raises:
        IndexError: an index lies outside its parameter; no gradient has been replaced then.

    Dense equivalent: none; dense gradients are added up as they arrive.

    Example:
        >>> e = torch.nn.Embedding(5, 1, sparse=True)
        >>> e(torch.tensor([1, 1, 3])).sum().backward()
        >>> mg.sparse.coalesce_gradients(e)
        >>> e.weight.grad.is_coalesced(), e.weight.grad.values().tolist()
        (True, [[2.0], [1.0]])

    Source: PyTorch concatenates accumulated sparse gradients, so the number of entries grows with every micro-batch.
    """
    if isinstance(model_or_params, torch.nn.Module):
        found: Iterable[Tensor] = model_or_params.parameters()
    else:
        found = [model_or_params] if isinstance(model_or_params, Tensor) else model_or_params
    sparse = [(p, p.grad) for p in found if p.grad is not None and p.grad.layout is torch.sparse_coo]
    merged = [coalesce(gradient.detach()) for _, gradient in sparse]
    for (p, _), gradient in zip(sparse, merged, strict=True):
        p.grad = gradient


def is_coalesced(t: Tensor) -> bool:
    """Return whether a sparse COO tensor is flagged as coalesced and has sorted, distinct indices.

    Args:
        t: sparse COO tensor.

    Raises:
        TypeError: ``t`` is not a sparse COO tensor.

    Dense equivalent: always True.

    Example:
        >>> mg.sparse.is_coalesced(torch.eye(2).to_sparse())
        True

    Source: ``torch.Tensor.is_coalesced`` reports the flag, which PyTorch does not check.
    """
    _require_coo(t, "is_coalesced")
    return t.is_coalesced() and increasing(
        positions(stored(t)[0], t.shape[: t.sparse_dim()], "is_coalesced: t")
    )


def stored(t: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (s, n) and values (n, *dense) as stored, without gradient; public accessors need coalesced tensors."""
    plain = t.detach()
    return plain._indices(), plain._values()


def positions(indices: Tensor, size: Sequence[int], where: str) -> Tensor:
    """Row-major index (n,) of each column of ``indices`` (s, n), after checking the bounds of each dimension."""
    if indices.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{where} must be int64 or int32, got {indices.dtype}")
    if prod(size) > torch.iinfo(torch.int64).max:
        raise ValueError(f"{where}: the sparse sizes {tuple(size)} have more positions than int64 can hold")
    for dimension, extent in enumerate(size):
        require_inside(indices[dimension], extent, f"{where}, dimension {dimension}")
    if len(size) == 1:
        return indices[0].to(torch.int64)
    if not size:
        return torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    position = indices[0].to(torch.int64)
    for index, extent in zip(indices[1:], size[1:], strict=True):
        position = torch.add(index, position, alpha=extent)
    return position


def require_inside(index: Tensor, extent: int, where: str) -> None:
    """Raise an IndexError that names the first of ``index`` (n,) outside ``0 <= index < extent``."""
    if index.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(index)).tolist()
    if low < 0 or high >= extent:
        place = int(((index < 0) | (index >= extent)).nonzero()[0, 0])
        raise IndexError(
            f"{where}: index {int(index[place])} of entry {place} is outside the size {extent} "
            f"(expected 0 <= index < {extent}); correct the index or enlarge the tensor"
        )


def places(position: Tensor, size: Sequence[int]) -> Tensor:
    """Indices (s, n) of row-major positions (n,): the inverse of :func:`positions`."""
    if len(size) == 1:
        return position.unsqueeze(0)
    indices = torch.empty(len(size), len(position), dtype=torch.int64, device=position.device)
    rest = position
    for dimension in range(len(size) - 1, 0, -1):
        extent = max(size[dimension], 1)
        lines = _lines(rest, extent, prod(size))
        torch.sub(rest, lines, alpha=extent, out=indices[dimension])
        rest = lines
    if size:
        indices[0] = rest
    return indices


def finer_rows(rows: Tensor, shape: Sequence[int], leading: int, finer: int) -> Tensor:
    """Convert rows of the first ``leading`` dimensions to rows of the first ``finer`` ones, of which there are more."""
    if leading == finer:
        return rows
    parts = prod(shape[leading:finer])
    return (rows.unsqueeze(1) * parts + torch.arange(parts, device=rows.device)).view(-1)


def _lines(position: Tensor, extent: int, places: int) -> Tensor:
    """``position // extent``; on the CPU in float64, which is twice as fast and exact below 2**53."""
    if position.device.type == "cpu" and places <= 2**53:
        return position.double().div_(extent).to(torch.int64)
    return position.div(extent, rounding_mode="floor")


def increasing(position: Tensor) -> bool:
    """Return whether ``position`` (n,) is sorted without duplicates."""
    return bool((position[1:] > position[:-1]).all())


def _require_coo(t: object, function: str) -> None:
    if isinstance(t, Tensor) and t.layout is torch.sparse_coo:
        return
    found = f"layout {t.layout}" if isinstance(t, Tensor) else type(t).__name__
    remedy = "t.to_sparse() converts" if isinstance(t, Tensor) else "pass a torch.Tensor"
    if found == "MaskedTensor":
        remedy = (
            "each entry of a MaskedTensor is stored once, so there is nothing to merge: use it as it is, or "
            "t.to_sparse().to_sparse_tensor() for a PyTorch sparse tensor"
        )
    raise TypeError(f"mg.sparse.{function}: t must be a sparse COO tensor, got {found}; {remedy}")


def _require_reduction(reduce: str, values: Tensor) -> None:
    if reduce not in _REDUCTIONS:
        raise ValueError(f"reduce must be one of {', '.join(_REDUCTIONS)}, got {reduce!r}")
    exact = not (values.is_floating_point() or values.is_complex())
    if (reduce == "mean" and exact) or (reduce in ("amax", "amin") and values.is_complex()):
        raise TypeError(
            f"reduce={reduce!r} is not defined for values of dtype {values.dtype}; use reduce='sum'"
        )


def _coalesce(t: Tensor, reduce: Reduce) -> tuple[Tensor, bool]:
    """The merged tensor without gradient, and whether it had duplicates."""
    indices, values = stored(t)
    size = t.shape[: t.sparse_dim()]
    position = positions(indices, size, "coalesce: t")
    if increasing(position):
        return _coo(indices, values, t), False
    distinct, merged = kernels.merge_rows(position, values, prod(size), reduce)
    return _coo(places(distinct, size), merged, t), len(distinct) < len(position)


def _coo(indices: Tensor, values: Tensor, like: Tensor) -> Tensor:
    # The invariants hold by construction; naming the choice also silences torch's warning about it.
    return torch.sparse_coo_tensor(indices, values, like.shape, is_coalesced=True, check_invariants=False)


class _Coalesce(torch.autograd.Function):
    """Differentiable :func:`coalesce`; a first derivative only."""

    @staticmethod
    def forward(t: Tensor, reduce: Reduce) -> Tensor:
        result, merged = _coalesce(t, reduce)
        if merged and reduce in ("amax", "amin"):
            raise ValueError(
                f"coalesce: t needs a gradient and has duplicates; reduce={reduce!r} has no gradient through a COO "
                "tensor; use mg.sparse.merge_entries(indices, values, size, reduce), "
                "or t.detach()"
            )
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Reduce], output: Tensor) -> None:
        t, ctx.reduce = inputs
        # zeros would come without our split into sparse and dense dimensions
        ctx.set_materialize_grads(False)
        if ctx.reduce == "mean":
            ctx.save_for_backward(stored(t)[0], stored(output)[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "coalesce: create_graph=True is not supported: the second derivative through "
                "torch.sparse_coo_tensor(indices, values) is silently wrong; use "
                "mg.sparse.merge_entries(indices, values, size), which can be differentiated any number of times"
            )
        if gradient is None or ctx.reduce != "mean":
            return gradient, None
        before, after = ctx.saved_tensors
        size = gradient.shape[: after.shape[0]]
        distinct = positions(after, size, "coalesce: gradient")
        segment = torch.searchsorted(distinct, positions(before, size, "coalesce: gradient"))
        share = torch.bincount(segment, minlength=len(distinct)).reciprocal()
        values = _entries_of(gradient, after, distinct)
        # One merged entry per index: the constructor's backward passes it to every duplicate.
        shared = values * share.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
        return _coo(after, shared, gradient), None


def _entries_of(gradient: Tensor, indices: Tensor, position: Tensor) -> Tensor:
    """Entries (m, *dense) of a dense or COO gradient at ``indices`` (s, m), whose positions are ``position`` (m,)."""
    if gradient.layout is torch.strided:
        return read_places(gradient, indices)
    found, values = stored(_coalesce(gradient, "sum")[0])
    result = values.new_zeros(len(position), *values.shape[1:])
    arrived = positions(found, gradient.shape[: len(indices)], "coalesce: gradient")
    known = torch.isin(arrived, position)
    return result.index_copy_(0, torch.searchsorted(position, arrived[known]), values[known])
