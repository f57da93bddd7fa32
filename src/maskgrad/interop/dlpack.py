"""DLPack, the way to JAX, CuPy and others: it knows values only, so the mask travels beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.utils.dlpack import from_dlpack as read

from maskgrad.interop.columns import check_masked_tensor
from maskgrad.masked_tensor.creation import masked

if TYPE_CHECKING:
    from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["Exported", "from_dlpack", "to_dlpack"]


class Exported(NamedTuple):
    """What :func:`to_dlpack` returns: two plain tensors of the same shape."""

    #: anything may lie where it is unspecified
    values: Tensor
    #: Boolean, True = specified
    mask: Tensor


def to_dlpack(x: MaskedTensor) -> Exported:
    """Values and mask as two tensors that the other library reads with its ``from_dlpack``.

    Args:
        x: MaskedTensor of strided layout.

    Returns:
        ``(values, mask)``, both without gradient. The mask is True where an entry is specified: invert it for
        ``numpy.ma``. What lies under it is anything, NaN included; ``x.filled(value)`` is the tensor to hand over if
        the other side takes no mask.

    Zero copy:
        The values are shared, so a write on the other side is seen here. An expanded mask is copied, because many
        readers refuse strides of 0.

    Raises:
        TypeError: ``x`` is no MaskedTensor, or has a sparse layout.

    Example:
        >>> import numpy as np
        >>> values, mask = mg.interop.to_dlpack(mg.from_nan(torch.tensor([1., float("nan")])))
        >>> np.from_dlpack(values).sum(where=np.from_dlpack(mask)).item()
        1.0
    """
    x = check_masked_tensor(x, "mg.interop.to_dlpack")
    return Exported(x._values.detach().resolve_conj().resolve_neg(), x.mask.contiguous())


def from_dlpack(values: Any, mask: Any) -> MaskedTensor:
    """Values and mask of another library as a MaskedTensor.

    Args:
        values: array of any library that speaks DLPack.
        mask: Boolean array, True = specified, broadcastable to ``values``, on the same device.

    Returns:
        MaskedTensor of the shape and dtype of ``values``.

    Zero copy:
        Values and mask are shared with the other library.

    Raises:
        TypeError: one of them does not speak DLPack, or ``mask`` is not Boolean.
        ValueError: ``mask`` does not broadcast, or lives on another device.

    Example:
        >>> import numpy as np
        >>> mg.interop.from_dlpack(np.array([1., 2.]), np.array([True, False]))
        masked([1., --], dtype=torch.float64)
    """
    for name, argument in (("values", values), ("mask", mask)):
        if not hasattr(argument, "__dlpack__"):
            raise TypeError(
                f"mg.interop.from_dlpack: {name} must be an array that speaks DLPack, found {type(argument).__name__}; "
                "use mg.masked for tensors"
            )
    return masked(read(values), read(mask))
