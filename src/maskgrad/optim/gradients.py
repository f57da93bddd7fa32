"""Reading a gradient: which entries of the parameter it specifies, and their values. One adapter per layout.

All layouts become one of four things, and a new layout is one more adapter that returns one of them:

=================  =============================================  ==============================================
:class:`Dense`     every entry                                    strided
:class:`Masked`    the entries under a Boolean mask               MaskedTensor with a Boolean mask
:class:`Rows`      listed rows (or single entries), maybe twice   COO, CSR, CSC, BSR, BSC, or MaskedTensor on one
:class:`Slots`     rows in a fixed number of slots                PaddedRows; :class:`Rows` where sizes may vary
=================  =============================================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskgrad.gradients.attached import AnyGradient
from maskgrad.gradients.padded_rows import PaddedRows, sizes_may_vary
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.optim.compressed import read_blocks, read_compressed
from maskgrad.sparse import positions, stored

__all__ = ["Dense", "Gradient", "Masked", "Rows", "Slots", "check_gradient", "read_gradient"]


@dataclass(frozen=True, slots=True)
class Dense:
    """Every entry is specified: ``values`` has the parameter's shape."""

    values: Tensor


@dataclass(frozen=True, slots=True)
class Masked:
    """Entries with ``mask`` True are specified; ``values`` is 0 elsewhere. Both have the parameter's shape."""

    values: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Listed rows of the parameter seen as (R, *row), where R is the product of its first ``leading`` sizes.

    ``indices`` (n,) are in bounds and may repeat; ``values`` is (n, *row). Single entries are rows of shape
    (). With a ``mask`` of the parameter's shape, for whole rows only, what a row has outside it is unspecified, and
    ``values`` is 0 there.
    """

    indices: Tensor
    values: Tensor
    leading: int
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Slots:
    """Rows of the parameter, each in one slot, ascending; ``indices`` (n,) are the parameter's length in unused ones.

    ``values`` is (n, *row), 0 in unused slots. ``mask`` as in :class:`Rows`.
    """

    indices: Tensor
    values: Tensor
    mask: Tensor | None = None


Gradient = Dense | Masked | Rows | Slots
_TENSORS = (Tensor, MaskedTensor, PaddedRows)


def read_gradient(param: Tensor, grad: AnyGradient, name: str) -> Gradient:
    """Bring ``grad`` into one form, after a look at everything that can be wrong with it; nothing is written.

    Raises:
        TypeError: not a tensor, an unknown layout, or a dtype that the parameter cannot take.
        ValueError: another shape or device than the parameter's, or compressed indices that contradict
            themselves.
        IndexError: an index outside the parameter.
    """
    check_gradient(param, grad, name)
    if isinstance(grad, PaddedRows):
        return _read_padded(param, grad.detach(), f"gradient of {name}")
    if isinstance(grad, MaskedTensor):
        return _read_masked(param, grad.detach(), f"gradient of {name}")
    return _ADAPTERS[grad.layout](param, grad.detach(), f"gradient of {name}")


def check_gradient(param: Tensor, grad: AnyGradient, name: str) -> None:
    """What can be checked without a look at the entries; raises what :func:`read_gradient` does, bar IndexError."""
    where = f"gradient of {name}"
    if not isinstance(grad, _TENSORS):
        raise TypeError(f"{where} must be a tensor, a MaskedTensor or PaddedRows, got {type(grad).__name__}")
    if type(grad).__name__ == "MaskedTensor" and not isinstance(grad, MaskedTensor):
        raise TypeError(
            f"{where} is a torch.masked tensor, whose mask nobody here reads; use mg.from_torch_masked(grad)"
        )
    if grad.shape != param.shape:
        raise ValueError(
            f"{where} has shape {tuple(grad.shape)}, but the parameter has shape {tuple(param.shape)}; "
            "the shapes must be equal"
        )
    if isinstance(grad, Tensor) and grad.layout not in _ADAPTERS:
        known = ", ".join(str(layout) for layout in _ADAPTERS)
        raise TypeError(f"{where} has layout {grad.layout}; expected a MaskedTensor or one of {known}")
    if grad.device != param.device:
        raise ValueError(
            f"{where} is on {grad.device}, but the parameter is on {param.device}; move one with .to()"
        )
    if not (grad.dtype.is_floating_point or (grad.dtype.is_complex and param.is_complex())):
        raise TypeError(
            f"{where} has dtype {grad.dtype}, which cannot update a parameter of dtype {param.dtype}"
        )


def _read_masked(param: Tensor, grad: MaskedTensor, where: str) -> Masked | Rows:
    listed = stored_of(grad)
    if listed is None:
        return Masked(grad.filled(0), grad.mask)
    leading = len(listed.sizes)
    return Rows(
        positions(listed.pattern.coordinates(), param.shape[:leading], where), listed.entries, leading
    )


def _read_padded(param: Tensor, grad: PaddedRows, where: str) -> Rows | Slots:
    if sizes_may_vary(param.device):
        used = grad.checked(where).used
        return Rows(grad.rows[used].to(torch.int64), grad.values[used], 1)
    merged = grad.with_values(grad.values.to(torch.promote_types(grad.dtype, torch.float32))).merged()
    return Slots(merged.rows, merged.values)


def _read_strided(param: Tensor, grad: Tensor, where: str) -> Dense:
    return Dense(grad)


def _read_coordinates(param: Tensor, grad: Tensor, where: str) -> Rows:
    indices, values = stored(grad)
    leading = grad.sparse_dim()
    return Rows(positions(indices, param.shape[:leading], where), values, leading)


def _read_compressed(param: Tensor, grad: Tensor, where: str) -> Rows:
    read = read_blocks if grad.layout in (torch.sparse_bsr, torch.sparse_bsc) else read_compressed
    indices, values = read(grad, where)
    leading = grad.dim() - grad.dense_dim()
    return Rows(positions(indices, param.shape[:leading], where), values, leading)


_ADAPTERS: dict[torch.layout, Callable[[Tensor, Tensor, str], Gradient]] = {
    torch.strided: _read_strided,
    torch.sparse_coo: _read_coordinates,
    torch.sparse_csr: _read_compressed,
    torch.sparse_csc: _read_compressed,
    torch.sparse_bsr: _read_compressed,
    torch.sparse_bsc: _read_compressed,
}
