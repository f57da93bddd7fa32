"""The parameters of an optimizer: their names in errors, and the gradients and masks attached to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.attached import AnyGradient, current_gradient, keep_attached
from maskgrad.gradients.gradient import check_fits
from maskgrad.gradients.train_only import keep_trained_entries
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.lazy.rows import bring_up_to_date

__all__ = ["attach_gradient", "attached_gradient", "check_parameter", "train_only", "with_values"]


def with_values(params: Any) -> Any:
    """Return parameters, with MaskedTensors (possibly named) replaced by their trained values."""
    if isinstance(params, Tensor | set):  # PyTorch refuses a set: its order is not defined
        return params

    def values(param: Any) -> Any:
        if isinstance(param, tuple) and len(param) == 2:
            return param[0], values(param[1])
        return param._values if isinstance(param, MaskedTensor) else param

    return [values(param) for param in ([params] if isinstance(params, MaskedTensor) else params)]


def check_parameter(param: Tensor, name: str) -> None:
    """Raise a TypeError unless ``param`` can be trained."""
    if param.layout is not torch.strided:
        raise TypeError(
            f"{name} is a sparse tensor ({param.layout}); mg.optim updates dense parameters and MaskedTensors of any "
            "layout: use x = mg.from_sparse(parameter.detach()).requires_grad_(), and pass x to mg.optim. Or keep a "
            "dense parameter and use mg.masked(parameter, mask).to_sparse() in the model"
        )
    if not (param.is_floating_point() or param.is_complex()):
        raise TypeError(
            f"{name} has dtype {param.dtype}; only floating-point and complex parameters can be trained"
        )


def attached_gradient(param: Tensor) -> AnyGradient | None:
    """The gradient that a step of ``mg.optim`` uses: the attached one, or ``.grad``; None if there is none.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> mg.attach_gradient(p, mg.masked(torch.ones(3), torch.tensor([True, False, False])))
        >>> mg.optim.attached_gradient(p)
        masked([1., --, --])
    """
    return current_gradient(param, "the parameter")


def attach_gradient(param: Tensor, masked: AnyGradient | None) -> None:
    """Set the gradient of a parameter, of any kind, as ``param.grad = ...`` does for dense and COO tensors.

    The optimizers of ``mg.optim`` update the specified entries, and only those. The gradient is assigned to ``.grad``:
    a dense or COO tensor directly, others as a tensor subclass. ``torch.nn.utils.clip_grad_norm_``,
    ``torch.amp.GradScaler`` and ``zero_grad()`` of a model work with it; entries without a gradient count as 0. All
    other functions raise an error for it, and so does a step of ``torch.optim``, before any change.
    ``param.grad.to_dense()`` is the dense gradient. (PyTorch/XLA has no such tensors: there it is an attribute of the
    parameter, ``.grad`` is None, and only optimizers of ``mg.optim`` use it.)

    Args:
        param: the parameter, any shape.
        masked: a MaskedTensor, or a strided, COO, CSR, CSC, BSR or BSC tensor, with the
            parameter's shape and device; it is detached, not copied. None removes the gradient.

    Gradient:
        None; this is not recorded for autograd.

    Raises:
        TypeError: ``masked`` is of an unknown kind or layout, or has a dtype that the parameter cannot take.
        ValueError: its shape or device differs from the parameter's. (Indices are checked by the step.)

    Dense equivalent: ``param.grad = gradient``.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> mg.attach_gradient(p, mg.masked(torch.tensor([1., 9., 1.]), torch.tensor([True, False, False])))
        >>> mg.optim.SGD([p], lr=0.5).step()
        >>> p.data
        tensor([0.5000, 1.0000, 1.0000])

    Source: PyTorch refuses ``p.grad = csr`` ("data of a different type") for a dense parameter.
    """
    if masked is not None:
        check_fits(param, masked, "gradient of the parameter")
    if masked is None:
        param.grad = None
    keep_attached(param, masked)


def train_only(param: Tensor, mask: Tensor | None) -> None:
    r"""Train only the entries under ``mask``: no optimizer changes any other entry.

    .. math::
        \theta_i \leftarrow \begin{cases} \text{the optimizer's result} & m_i \\ \theta_i & \text{otherwise} \end{cases}

    Weight decay, momentum from earlier steps, second moments, a NaN in the gradient: nothing affects an
    entry outside the mask, which keeps its value bit for bit. A value that you assign (``param.data[1] = 0``), before
    or after, is kept.

    The gradient outside the mask is unspecified. Optimizers of ``mg.optim`` skip these entries, states included, at
    a cost proportional to the gradient. For every other optimizer a step sets ``.grad`` to 0 there, and the entries are
    restored afterwards: two passes over this parameter.
    :func:`maskgrad.grad_norm`, :func:`maskgrad.clip_grad_norm_` and :class:`maskgrad.amp.GradScaler` ignore these
    entries.

    Args:
        param: strided parameter, any shape; a leaf, or about to become one.
        mask: Boolean tensor (or integers 0 and 1) on the parameter's device, True = trained, with as many dimensions as
            the parameter, size 1 where it repeats: ``rows[:, None]`` for whole rows. It is copied, and replaces an
            earlier mask. None removes it.

    The mask belongs to this parameter object. Deep copies and pickles of the parameter or its module have it,
    ``module.to(...)`` keeps it. ``state_dict()`` does not contain it: loading one (without ``assign=True``) keeps the
    masks and replaces values, frozen ones too.

    Raises:
        TypeError: ``param`` is not a strided tensor, or ``mask`` is not one of Booleans or integers.
        ValueError: the mask contains other integers, has fewer dimensions than the parameter, does not broadcast to it,
            or is on another device.

    Dense equivalent: ``param.data[~mask] = before[~mask]`` after every step.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9, weight_decay=0.1)
        >>> mg.train_only(w, torch.tensor([True, False]))
        >>> for _ in range(3):
        ...     w.grad = torch.ones(2)
        ...     optimizer.step()
        >>> w.data
        tensor([0.3882, 1.0000])

    Source: ``torch.nn.utils.prune``, which multiplies by the mask in every forward pass and trains another tensor.
    """
    if isinstance(param, Tensor):
        bring_up_to_date(param)  # with the mask of the time of the steps
    keep_trained_entries(param, mask)
