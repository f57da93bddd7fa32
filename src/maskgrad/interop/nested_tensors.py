"""PyTorch's nested tensors of jagged layout, and its prototype torch.masked (True = specified, too)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.interop.sequences import sequences_of
from maskgrad.masked_tensor.sequences import check_layout, from_offsets
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.patterns import JaggedPattern

if TYPE_CHECKING:
    from torch.masked import MaskedTensor as TorchMasked

__all__ = ["from_nested", "from_torch_masked", "to_nested"]


def from_nested(
    jagged: Tensor, size: int | None = None, layout: torch.layout = torch.strided
) -> MaskedTensor:
    """Convert a nested tensor of jagged layout to a batch that is specified where sequences have entries.

    Args:
        jagged: nested tensor (B, ..., T*, ...) of ``torch.jagged`` layout; T* is the ragged dimension.
        size: size of that dimension in the result, at least the longest sequence. None: the longest sequence; finding
            it waits for the device.
        layout: ``torch.strided`` pads, with a Boolean mask; ``torch.jagged`` keeps the sequences
            concatenated, without the cost of padding.

    Returns:
        MaskedTensor (B, ..., size, ...); strided: 0 in the padding, its mask an expanded view.
        Gradient: reaches ``jagged`` and its inputs; padding gets none. PyTorch's jagged tensors have
        no second derivative, and raise ``NotImplementedError``.

    Zero copy:
        To ``torch.jagged``, values and int64 offsets are shared (copied if ``torch.nested.narrow`` left entries between
        the sequences). For ``torch.strided`` they are copied, with padding.

    Raises:
        TypeError: ``jagged`` is not a nested tensor of jagged layout.
        ValueError: ``size`` is smaller than the longest sequence, or ``layout`` is unknown.

    Dense equivalent: ``torch.nested.to_padded_tensor(jagged, 0.)``, with its mask.

    Example:
        >>> jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)
        >>> mg.from_nested(jagged)
        masked([[1., 1.],
                [1., --]])
        >>> mg.from_nested(jagged, layout=torch.jagged).values()
        tensor([1., 1., 1.])

    Source: https://docs.pytorch.org/docs/stable/nested.html
    """
    check_layout(layout)
    if not isinstance(jagged, Tensor) or not jagged.is_nested or jagged.layout != torch.jagged:
        found = type(jagged).__name__
        if isinstance(jagged, Tensor):
            found = f"a {'nested' if jagged.is_nested else 'plain'} tensor of layout {jagged.layout}"
        raise TypeError(
            f"mg.from_nested: jagged must be a nested tensor of layout torch.jagged, found {found}; build one with "
            "torch.nested.as_nested_tensor(list_of_tensors, layout=torch.jagged)"
        )
    dim = next(i for i, extent in enumerate(jagged.shape) if isinstance(extent, torch.SymInt))
    parts: Any = jagged  # Tensor's annotations do not cover nested tensors
    offsets = parts.offsets().long()
    if parts.lengths() is None:
        rows = jagged.values().movedim(dim - 1, 0)  # (sum of lengths, *features)
    else:  # torch.nested.narrow leaves entries between the sequences
        rows = torch.cat([part.movedim(dim - 1, 0) for part in jagged.unbind()])
        offsets = torch.nn.functional.pad(parts.lengths().long().cumsum(0), (1, 0))
    longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
    if size is not None and longest > size:
        raise ValueError(
            f"mg.from_nested: size must be at least {longest}, the longest sequence, found {size}"
        )
    x = from_offsets(rows, offsets, longest if size is None else size)
    assert isinstance(x._pattern, JaggedPattern)
    x = MaskedTensor(rows, x._pattern.moved((0, dim)))
    return x if layout == torch.jagged else to_dense(x)


def to_nested(x: MaskedTensor, dim: int = 1) -> Tensor:
    """Convert a batch of sequences to a nested tensor of jagged layout, without its padding.

    Args:
        x: MaskedTensor (B, ..., T, ...) of layout ``torch.jagged``, or with a Boolean mask, each sequence specified in
            its first positions along ``dim``.
        dim: the padded dimension, any but 0; for a jagged tensor the ragged one.

    Returns:
        Nested tensor of ``torch.jagged`` layout, ragged at ``dim``. Gradient: reaches the specified entries of ``x``,
        exactly 0 elsewhere; with first derivatives only, as for :func:`maskgrad.from_nested`.

    Zero copy:
        Values and offsets of a jagged tensor are shared. A padded batch is copied, without its padding.

    Raises:
        TypeError: ``x`` is not a MaskedTensor, or has a sparse layout such as COO.
        ValueError: as for :func:`lengths`, if the mask is not that of padded sequences; or ``x`` has several batch
            dimensions.

    Example:
        >>> x = mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([3, 1]))
        >>> [sequence.tolist() for sequence in mg.interop.to_nested(x).unbind()]
        [[0.0, 1.0, 2.0], [3.0]]

    Source: https://docs.pytorch.org/docs/stable/nested.html
    """
    values, pattern = sequences_of(x, "mg.interop.to_nested", dim)
    batch, place = pattern.at
    if batch != 0:
        raise ValueError(
            f"mg.interop.to_nested: the batch dimension of x must be the first, found dimension {batch}; use "
            "x.transpose(0, 1)"
        )
    return torch.nested.nested_tensor_from_jagged(
        values.movedim(0, place - 1), pattern.offsets, jagged_dim=place
    )


def from_torch_masked(mt: TorchMasked) -> MaskedTensor:
    """Convert a ``torch.masked.MaskedTensor`` to maskgrad's.

    Args:
        mt: masked tensor of strided layout.

    Returns:
        MaskedTensor with the same values and mask. Gradient: reaches ``mt``, as the masked gradient that
        ``torch.masked`` expects.

    Zero copy:
        The values are shared; PyTorch copies the mask.

    Raises:
        TypeError: ``mt`` is not a ``torch.masked.MaskedTensor``, or has a sparse layout.

    Example:
        >>> import warnings; warnings.simplefilter("ignore")  # PyTorch warns that its class is a prototype
        >>> mt = torch.masked.masked_tensor(torch.tensor([1., 2.]), torch.tensor([True, False]))
        >>> mg.from_torch_masked(mt)
        masked([1., --])
    """
    from torch.masked import MaskedTensor as TorchMasked

    if not isinstance(mt, TorchMasked):
        raise TypeError(
            f"mg.from_torch_masked: mt must be a torch.masked.MaskedTensor, found {type(mt).__name__}; "
            "use mg.masked(data, mask) for plain tensors"
        )
    if mt.layout != torch.strided:
        raise TypeError(
            f"mg.from_torch_masked: mt must have a strided layout, found {mt.layout}; use mt.to_dense(), or "
            "mg.from_sparse(mt.get_data()) to keep the layout"
        )
    return of_entries(mt.get_data(), mt.get_mask())
