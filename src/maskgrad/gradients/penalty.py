"""Penalties on the norm of a gradient, which need second derivatives in training."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from maskgrad.gradients.batched import batched_grad
from maskgrad.gradients.clipping import listed_parameters
from maskgrad.gradients.gradient import widened_dtype
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.tensor import stored_of

__all__ = ["gradient_penalty"]

Operand = Tensor | MaskedTensor


def gradient_penalty(
    loss: Operand,
    params: Operand | Iterable[Operand],
    scaler: torch.amp.GradScaler | None = None,
    *,
    per_sample: bool = False,
    target: float | None = None,
    one_sided: bool = False,
    power: Literal[1, 2] = 2,
    reduction: Literal["mean", "sum", "none"] = "mean",
    coupling: str = "check",
) -> Operand:
    r"""Return a function of the norm of a gradient, which can be added to a loss and differentiated.

    .. math:: n = \left(\sum_i \lVert \partial\,\text{loss} / \partial\,\text{params}_i \rVert^2\right)^{1/2}, \qquad
              n^p \;\text{ or }\; \lvert n - \text{target} \rvert^p \;\text{ or }\; \max(0,\, n - \text{target})^p

    The graph is created and kept, as with ``create_graph=True``. If the gradient is zero, so is that of its norm,
    which would be NaN with a plain square root.

    Args:
        loss: a scalar, tensor or MaskedTensor, not scaled. With ``per_sample``, outputs (B, \*O), of a critic for
            example; if a sample has several outputs, the norm is the Frobenius norm of its Jacobian.
        params: tensors to differentiate with respect to: one tensor or MaskedTensor, or several. With ``per_sample``,
            (B, \*I) each, any node of the graph. Several parameters: those that do not require a gradient, or are not
            used in the loss, count as zero.
        scaler: the scaler for mixed precision. The loss is scaled before it is differentiated, so that small gradients
            survive float16, and the gradient is unscaled before its norm is taken. The penalty is not scaled: add it to
            the loss, and scale the sum.
        per_sample: one norm for every sample, instead of one for all.
        target: the norm without penalty; None: the power of the norm itself.
        one_sided: penalize only norms above ``target``.
        power: exponent of the norm, or of its excess over ``target``: 1 or 2.
        reduction: over samples: ``"mean"``, ``"sum"`` or ``"none"``. One norm for all is not reduced.
        coupling: with ``per_sample``, as in :func:`maskgrad.batched_grad`.

    Returns:
        0-dim tensor, or (B,) with ``reduction="none"``, in at least float32. One norm is masked if ``loss`` is. With
        ``per_sample``, samples without specified entries in ``loss`` or ``params`` are masked and not counted.
        Gradients at unspecified entries of ``params`` do not count either. An empty loss has a gradient of norm zero.

    Gradient: with respect to all tensors that the gradient depends on; any number of times.

    Raises:
        CoupledSamplesError: samples influence each other, with ``per_sample``.
        TypeError: ``loss`` or one of ``params`` is not a tensor; a gradient is compressed (CSR, …), which PyTorch
            cannot differentiate.
        ValueError: ``loss`` is not a scalar, not in a graph, or depends on none of ``params``; an option is unknown.

    Dense equivalent: ``torch.autograd.grad(loss, params, create_graph=True)``, and its norm.

    Example:
        >>> w = torch.tensor([1., 2.], requires_grad=True)
        >>> penalty = mg.gradient_penalty((w**3).sum(), [w])
        >>> penalty.item()
        153.0
        >>> penalty.backward()
        >>> w.grad
        tensor([ 36., 288.])

    Source: Gulrajani et al., "Improved training of Wasserstein GANs", 2017; Petzka et al., "On the regularization of
    Wasserstein GANs", 2018 (one-sided); PyTorch's notes on automatic mixed precision.
    """
    _check(loss, target, one_sided, power, reduction)
    wanted = _wanted(params)
    scaled: Any = loss if scaler is None else scaler.scale(loss)
    one = torch.ones((), device=loss.device)  # scaled, without waiting for a GPU
    unscale = None if scaler is None else scaler.scale(one).detach().double().reciprocal().float()
    squares, specified = (
        _of_samples(scaled, wanted, unscale, coupling) if per_sample else _of_all(scaled, wanted, unscale)
    )
    penalty = squares if power == 2 and target is None else _norm_of_squares(squares)
    if target is not None:
        excess = (penalty - target).clamp(min=0) if one_sided else penalty - target
        penalty = excess.square() if power == 2 else excess.abs()
    result = penalty if specified is None else masked(penalty, specified)
    if not per_sample or reduction == "none":
        return result
    return result.mean() if reduction == "mean" else result.sum()


def _check(loss: Any, target: float | None, one_sided: bool, power: Any, reduction: Any) -> None:
    if power not in (1, 2):
        raise ValueError(f"power must be 1 or 2, found {power!r}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', found {reduction!r}")
    if one_sided and target is None:
        raise ValueError("one_sided needs a target, the largest norm without penalty, as in target=1.0")
    if not isinstance(loss, (Tensor, MaskedTensor)):
        raise TypeError(f"loss must be a tensor, found {type(loss).__name__}")
    if not loss.requires_grad:
        raise ValueError(
            "loss must be in a graph, found one that requires no gradient; was it computed under torch.no_grad(), or "
            "detached?"
        )


def _wanted(params: Any) -> list[Operand]:
    given = listed_parameters(params)
    wanted = [param for param in given if param.requires_grad]
    if not wanted:
        raise ValueError(
            f"params must contain a tensor that requires a gradient, found none among {len(given)}; call "
            "requires_grad_() before the loss is computed"
        )
    return wanted


def _of_all(loss: Operand, wanted: list[Operand], unscale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the squared norm of the gradient by all tensors together, and whether there is one; None: there is."""
    if loss.shape.numel() != 1:
        raise ValueError(
            f"loss must be a scalar, found shape {tuple(loss.shape)}; use loss.sum(), or pass per_sample=True"
        )
    plain = loss.filled(0) if isinstance(loss, MaskedTensor) else loss
    nodes = [w._values if isinstance(w, MaskedTensor) else w for w in wanted]
    found = torch.autograd.grad(plain, nodes, torch.ones_like(plain), create_graph=True, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise ValueError(
            "loss must depend on one of params, found none of them in its graph; a view or copy made after the loss "
            "is another node: pass the tensors that the loss was computed from"
        )
    parts = []
    for gradient, one in zip(found, wanted, strict=True):
        if gradient is not None:
            mask = one.mask if isinstance(one, MaskedTensor) and stored_of(one) is None else None
            counted = gradient if mask is None else torch.where(mask, gradient, 0)
            parts.append(_squares(counted, unscale).sum())
    return _total(parts), loss.mask.reshape(()) if isinstance(loss, MaskedTensor) else None


def _of_samples(
    outputs: Operand, wanted: list[Operand], unscale: Tensor | None, coupling: str
) -> tuple[Tensor, Tensor | None]:
    """Return the squared norm for each sample, (B,), and the samples that have one; None: all."""
    several = len(wanted) > 1
    jacobians = batched_grad(outputs, wanted, create_graph=True, coupling=coupling, materialize_grads=several)
    parts: list[Tensor] = []
    specified: Tensor | None = None
    for jacobian in jacobians:
        if isinstance(jacobian, MaskedTensor):
            some = jacobian.mask.unsqueeze(-1).flatten(1).any(1)
            specified = some if specified is None else specified | some
        plain = jacobian.filled(0) if isinstance(jacobian, MaskedTensor) else jacobian
        parts.append(_squares(plain, unscale).unsqueeze(-1).flatten(1).sum(1))
    if specified is not None and not all(isinstance(jacobian, MaskedTensor) for jacobian in jacobians):
        specified = None  # every sample has a fully specified input
    return _total(parts), specified


def _squares(gradient: Tensor, unscale: Tensor | None) -> Tensor:
    if gradient.layout is torch.sparse_coo:
        # a row that was looked up several times has the sum as gradient
        gradient = gradient.coalesce().values()
    if gradient.layout is not torch.strided:
        raise TypeError(
            f"params: a gradient has layout {gradient.layout}, which PyTorch cannot differentiate twice; use "
            "mg.from_sparse(t.detach()).requires_grad_(), whose values are the parameter"
        )
    wide = gradient.to(widened_dtype(gradient.dtype))
    if unscale is not None:
        wide = wide * unscale.to(wide.device)
    if wide.is_complex():
        wide = torch.view_as_real(wide)
    return wide.square()


def _total(parts: list[Tensor]) -> Tensor:
    return functools.reduce(lambda total, part: total + part.to(total.device), parts)


def _norm_of_squares(squares: Tensor) -> Tensor:
    """Return the square root, with gradient zero at zero."""
    positive = squares > 0
    # Both branches are finite, and so are their gradients.
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)
