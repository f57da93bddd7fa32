"""Constructors: they declare which entries of some data are specified. All are differentiable in the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.masked_tensor.numpy_memory import holds_numbers, tensor_of
from maskgrad.masked_tensor.other_packages import notice_packages
from maskgrad.masked_tensor.sequences import check_layout, jagged_of_lengths
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.masked_tensor.torch_patches.torchscript import refuse_trace, trace_state
from maskgrad.mode import can_read
from maskgrad.other_data import conversion_of, has_own_mask, is_sparse
from maskgrad.patterns import BooleanPattern, StoredPattern
from maskgrad.patterns.boolean import own_storage
from maskgrad.patterns.mask_arguments import boolean_mask, check_mask
from maskgrad.semantics.entries import chosen

if TYPE_CHECKING:
    import numpy as np

__all__ = ["from_lengths", "from_nan", "from_numpy", "masked", "plain_mask"]


def _check_data(data: object) -> Tensor | MaskedTensor:
    """Return data as a tensor, or of numpy.ma as a MaskedTensor; TypeError for what has to be converted."""
    if trace_state() is not None:  # here too, before the tracer warns about the code below
        refuse_trace()
    notice_packages()
    if isinstance(data, Tensor) and data.layout == torch.strided and not has_own_mask(data):
        return data
    if not isinstance(data, Tensor):
        import numpy as np

        if isinstance(data, np.ma.MaskedArray):
            return from_numpy(data)
    found = f"layout {data.layout}" if isinstance(data, Tensor) and is_sparse(data) else type(data).__name__
    raise TypeError(f"data must be a strided torch.Tensor, found {found}; use {conversion_of(data, 'data')}")


def plain_mask(mask: Tensor | MaskedTensor, data: Tensor | MaskedTensor, true: str = "specified") -> Tensor:
    """Return a mask as a plain Boolean tensor. It may be masked, as ``x != 0``; unspecified entries become False.

    Raises:
        TypeError, ValueError: as :func:`maskgrad.patterns.mask_arguments.boolean_mask`.
        ValueError: the mask is unspecified at an entry where ``data`` is specified.
    """
    if not isinstance(mask, MaskedTensor):
        return boolean_mask(mask, true=true)
    values, known = mask._dense()
    if not _is_pattern_of(data, mask):
        missing = data._dense()[1] & ~known if isinstance(data, MaskedTensor) else ~known
        if not can_read(missing) or bool(missing.any()):
            raise ValueError(
                "mask is a MaskedTensor that is not specified at every specified entry of the data (or, in a graph, "
                "not known to be); use mask.filled(False), which removes those entries, or mask.filled(True), which "
                "keeps them"
            )
    if values.dtype is torch.bool:
        return values & known
    return boolean_mask(chosen(known, values, 0), true=true)


def _is_pattern_of(data: Tensor | MaskedTensor, mask: MaskedTensor) -> bool:
    """Return whether both have one pattern, without reading values, so in graphs, too."""
    if not isinstance(data, MaskedTensor):
        return False
    one, other = data._pattern, mask._pattern
    if isinstance(one, BooleanPattern) and isinstance(other, BooleanPattern):
        return one.current is other.current
    return isinstance(one, StoredPattern) and isinstance(other, StoredPattern) and one.is_same(other)


def masked(data: Tensor | MaskedTensor, mask: Tensor | MaskedTensor | None = None) -> MaskedTensor:
    """Create a MaskedTensor from data and a mask; True means specified (observed, valid, not padding).

    Args:
        data: tensor of any shape and dtype, shared and not copied: operations in place write into it. A MaskedTensor
            keeps its own mask, too, and so does a ``numpy.ma`` array, as in :func:`from_numpy`.
        mask: Boolean tensor, True = specified, with as many dimensions as ``data``, size 1 where it repeats (a 0-dim
            mask applies to all of ``data``). It is shared as well: writing to the MaskedTensor or its views changes it,
            until another MaskedTensor or a derivative may need the old one. Integers 0 and 1, as tokenizers write them,
            are converted, not shared. None: all entries are specified. A MaskedTensor, such as ``x != -100``, must be
            specified wherever ``data`` is.

    Returns:
        MaskedTensor of the shape and dtype of ``data``; Boolean masks for jagged and sparse data with ``mask``.
        Gradient: reaches ``data`` at specified entries, exactly 0 elsewhere.

    Raises:
        TypeError: ``data`` is not a tensor, or ``mask`` is not one of Booleans or integers.
        ValueError: ``mask`` contains other integers than 0 and 1 (read in eager mode only), has fewer dimensions than
            ``data``, does not broadcast to it, is on another device, or is unspecified where ``data`` is specified.

    Example:
        >>> import torch, maskgrad as mg
        >>> x = mg.masked(torch.arange(4.), torch.tensor([True, True, False, True]))
        >>> x.sum()
        tensor(4.)
    """
    if not isinstance(data, MaskedTensor):
        data = _check_data(data)
    if isinstance(data, MaskedTensor):
        if mask is None:
            return data
        values, own = data._dense()
        return of_entries(values, own & check_mask(plain_mask(mask, data), values.shape, values.device))
    if mask is None:
        return of_entries(data, torch.ones((), dtype=torch.bool, device=data.device).expand(data.shape))
    mask = plain_mask(mask, data)
    whole = check_mask(mask, data.shape, data.device)
    return MaskedTensor(data, BooleanPattern(whole, own_storage(mask, whole)))


def from_nan(data: Tensor | MaskedTensor) -> MaskedTensor:
    """Create a MaskedTensor from data in which NaN means missing, as in pandas and many files.

    Args:
        data: floating-point or complex tensor of any shape. A MaskedTensor and a ``numpy.ma`` array keep their masks,
            too.

    Returns:
        MaskedTensor that is specified where ``data`` is not NaN. Infinities are specified.
        Gradient: as for :func:`masked`.

    Raises:
        TypeError: ``data`` is not a strided tensor.

    Example:
        >>> import torch, maskgrad as mg
        >>> mg.from_nan(torch.tensor([1., float("nan"), 3.])).mean()
        tensor(2.)
    """
    if not isinstance(data, MaskedTensor):
        data = _check_data(data)
    return masked(data, ~torch.isnan(data))


def _check_lengths(data: Tensor, lengths: object) -> None:
    """Raise a TypeError for lengths that are no integers, or that are a mask."""
    if not isinstance(lengths, Tensor):
        remedy = "use torch.tensor(lengths).long()"
        raise TypeError(f"lengths must be an integer tensor, found {type(lengths).__name__}; {remedy}")
    ndim = lengths.ndim
    if lengths.dtype is torch.bool or (ndim > 1 and lengths.shape == data.shape[:ndim]):
        index = f"[..., {', '.join(['None'] * (data.ndim - ndim))}]" if data.ndim > ndim else ""
        at_end = ", or mg.from_lengths(data, mask.sum(1)) if all padding is at the end" if ndim == 2 else ""
        raise TypeError(
            f"lengths must be an integer tensor (B,), found a mask of {lengths.dtype} and shape "
            f"{tuple(lengths.shape)}; use mg.masked(data, mask{index}){at_end}"
        )
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex:
        raise TypeError(f"lengths must be an integer tensor, found {lengths.dtype}; use lengths.long()")


def from_lengths(
    data: Tensor | MaskedTensor, lengths: Tensor, dim: int = 1, *, layout: torch.layout = torch.strided
) -> MaskedTensor:
    """Create a padded batch: sequence ``b`` is specified in its first ``lengths[b]`` positions along ``dim``.

    Args:
        data: tensor (B, ..., T, ...) with T at ``dim``. A MaskedTensor keeps its own mask, too.
        lengths: integer tensor (B,), each between 0 and T, on the device of ``data``.
        dim: the padded dimension, any but 0.
        layout: ``torch.strided`` keeps ``data`` and has a Boolean mask; ``torch.jagged`` keeps the specified
            positions only, so that later operations do not compute padding. It reads their number.

    Returns:
        MaskedTensor of the shape of ``data``; the mask is an expanded view. Gradient: exactly 0 in the padding.

    Raises:
        TypeError: ``lengths`` is not an integer tensor, or is a mask.
        ValueError: its shape is not (B,), it is on another device, ``dim`` is 0 or out of range, or (where values
            can be read) a length is.

    Example:
        >>> import torch, maskgrad as mg
        >>> mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([3, 1])).mean(1)
        masked([1., 3.])
    """
    if not isinstance(data, MaskedTensor):
        data = _check_data(data)
    if isinstance(data, MaskedTensor):
        both = masked(data, from_lengths(data._dense()[0], lengths, dim).mask)
        return both if layout == torch.strided else both.to_jagged(dim)
    _check_lengths(data, lengths)
    if data.ndim < 2 or lengths.shape != data.shape[:1]:
        raise ValueError(
            f"lengths must have shape (B,) = {tuple(data.shape[:1])}, one length for each sequence of data "
            f"{tuple(data.shape)}, found {tuple(lengths.shape)}"
        )
    if lengths.device != data.device:
        raise ValueError(
            f"lengths must be on the device of data, {data.device}, found {lengths.device}; "
            f"use lengths.to({str(data.device)!r})"
        )
    if dim % data.ndim == 0 or not -data.ndim <= dim < data.ndim:
        raise ValueError(
            f"dim must be a dimension of data other than 0 (the batch), found {dim} for {data.ndim} dimensions"
        )
    dim %= data.ndim
    size = data.shape[dim]
    if can_read(lengths) and lengths.numel() and (int(lengths.min()) < 0 or int(lengths.max()) > size):
        raise ValueError(
            f"lengths must lie between 0 and {size}, the size of dim {dim}, "
            f"found {int(lengths.min())} to {int(lengths.max())}"
        )
    if layout != torch.strided:
        check_layout(layout)
        return jagged_of_lengths(data, lengths, dim)
    positions = torch.arange(size, device=data.device)
    mask = positions < lengths.unsqueeze(-1)
    shape = [1] * data.ndim
    shape[0], shape[dim] = data.shape[0], size
    return of_entries(data, mask.reshape(shape).expand(data.shape))


def from_numpy(array: np.ma.MaskedArray[Any, Any] | np.ndarray[Any, Any]) -> MaskedTensor:
    """Create a MaskedTensor from a ``numpy.ma`` array, whose mask is True for *missing* entries.

    Args:
        array: masked array (or a plain one: fully specified) of a dtype of torch. The data is shared; it is copied
            if it is read-only, has negative strides, or has a foreign byte order.

    Returns:
        MaskedTensor, specified where numpy's mask is False.

    Raises:
        TypeError: ``array`` is not a numpy array, or not of numbers (text, dates, objects, records, longdouble).

    Example:
        >>> import numpy as np, maskgrad as mg
        >>> mg.from_numpy(np.ma.array([1., 2.], mask=[True, False]))
        masked([--, 2.], dtype=torch.float64)
    """
    import numpy as np

    notice_packages()
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"array must be a numpy array, found {type(array).__name__}; use mg.masked for tensors"
        )
    if not holds_numbers(array.dtype):
        raise TypeError(
            f"array must contain numbers or Booleans of a dtype of torch, found dtype {array.dtype}; "
            "use array.astype(np.float64), or mg.from_pandas for columns of several kinds"
        )
    data = tensor_of(np.ma.getdata(array))
    return of_entries(data, torch.from_numpy(np.asarray(~np.ma.getmaskarray(array))))
