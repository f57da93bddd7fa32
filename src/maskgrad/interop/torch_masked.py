"""PyTorch's own prototype, ``torch.masked.MaskedTensor``; its polarity is ours, True = specified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from maskgrad.interop.columns import check_masked_tensor
from maskgrad.masked_tensor.tensor import of_entries

if TYPE_CHECKING:
    from torch.masked import MaskedTensor as TorchMasked

    from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["from_torch_masked", "to_torch_masked"]


def from_torch_masked(mt: TorchMasked) -> MaskedTensor:
    """A ``torch.masked.MaskedTensor`` as one of maskgrad.

    Args:
        mt: masked tensor of strided layout.

    Returns:
        MaskedTensor with the same values and mask. Gradient: reaches ``mt``, as the masked gradient that
        ``torch.masked`` expects.

    Zero copy:
        The values are shared; PyTorch copies the mask.

    Raises:
        TypeError: ``mt`` is no ``torch.masked.MaskedTensor``, or has a sparse layout.

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
            "mg.masked(data, mask) takes plain tensors"
        )
    if mt.layout != torch.strided:
        raise TypeError(
            f"mg.from_torch_masked: mt must have a strided layout, found {mt.layout}; use mt.to_dense(), or "
            "mg.from_sparse(mt.get_data()) to keep the layout"
        )
    return of_entries(mt.get_data(), mt.get_mask())


def to_torch_masked(x: MaskedTensor) -> TorchMasked:
    """A ``torch.masked.MaskedTensor`` with the values and the mask of ``x``.

    Args:
        x: MaskedTensor of strided layout and any dtype that ``torch.masked`` takes (Boolean, integer or floating
            point; no halves of complex numbers).

    Returns:
        ``torch.masked.MaskedTensor``. Gradient: a plain one reaches what ``x`` was made of, exactly 0 at unspecified
        entries. (``torch.masked.as_masked_tensor`` would hand a masked one to the plain tensor.)

    Zero copy:
        None; PyTorch's constructor copies both.

    Raises:
        TypeError: ``x`` is no MaskedTensor, or has a sparse layout, or a dtype that ``torch.masked`` refuses.

    Warns:
        UserWarning: PyTorch's own, that its class is a prototype.

    Example:
        >>> import warnings; warnings.simplefilter("ignore")
        >>> mg.interop.to_torch_masked(mg.from_nan(torch.tensor([1., float("nan")])))
        MaskedTensor(
          [  1.0000,       --]
        )
    """
    x = check_masked_tensor(x, "mg.interop.to_torch_masked")
    return cast("TorchMasked", _ToTorchMasked.apply(x._values, x.mask.contiguous()))  # type: ignore[no-untyped-call]


class _ToTorchMasked(torch.autograd.Function):
    """Wraps; what comes back is unwrapped, so that plain tensors receive plain gradients."""

    @staticmethod
    def forward(values: Tensor, mask: Tensor) -> TorchMasked:
        from torch.masked import MaskedTensor as TorchMasked

        return TorchMasked(values, mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: TorchMasked) -> None:
        """The gradient brings its own mask."""

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> tuple[Tensor, None]:
        from torch.masked import MaskedTensor as TorchMasked

        return gradient.to_tensor(0) if isinstance(gradient, TorchMasked) else gradient, None
