"""The entries of a MaskedTensor on their way out, into numpy's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.masked_tensor.tensor import MaskedTensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EXACT_WIDER", "check_masked_tensor", "entries_in_numpy"]

#: Where a neighbour lacks a dtype, the next one that holds every value of it.
EXACT_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def check_masked_tensor(x: object, function: str) -> MaskedTensor:
    """Return ``x``, or say that it is no MaskedTensor with a Boolean mask."""
    if not isinstance(x, MaskedTensor):
        raise TypeError(
            f"{function}: x must be a MaskedTensor, found {type(x).__name__}; wrap it in mg.masked(x)"
        )
    if x.layout != torch.strided:
        raise TypeError(
            f"{function}: x must have a strided layout, found {x.layout}; x.to_dense() says that you want the memory "
            "for every entry"
        )
    return x


def entries_in_numpy(
    x: MaskedTensor, function: str, widen: tuple[torch.dtype, ...] = ()
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Fresh arrays: the real values, 0 or False where unspecified, and numpy's mask, True where an entry is *missing*.

    Args:
        x: checked MaskedTensor.
        function: for messages.
        widen: dtypes that the neighbour lacks, besides bfloat16, which numpy has not either.
    """
    dtype: torch.dtype = x.dtype
    if dtype.is_complex:
        raise TypeError(
            f"{function}: x must be real, found {dtype}; convert x.real and x.imag one after the other"
        )
    nothing = False if dtype == torch.bool else 0
    # a copy: garbage under the mask does not travel, memory is not shared
    values = x.filled(nothing).detach().cpu()
    if dtype in widen or dtype == torch.bfloat16:
        values = values.to(EXACT_WIDER[dtype])
    return values.resolve_neg().numpy(), ~x.mask.cpu().numpy()
