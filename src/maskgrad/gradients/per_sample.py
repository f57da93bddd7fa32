"""Gradients for each sample of a batch: all of them, their norms, or the sum of clipped ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maskgrad.gradients.clipping import limit_of
from maskgrad.gradients.per_sample_batches import Chunk, Method, PerSample
from maskgrad.gradients.per_sample_rows import squared_norms, weighted_sum

__all__ = ["clipped_backward", "per_sample_grad", "per_sample_grad_norms"]


def per_sample_grad(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    inputs: Any,
    targets: Any = None,
    *,
    chunk_size: int | None = None,
    method: Method = "auto",
) -> dict[str, Tensor]:
    r"""Return the gradient of every sample's loss with respect to every parameter, without a loop.

    .. math:: G_b = \frac{\partial}{\partial \theta}\, \text{loss\_fn}(\text{model}(x_{b:b+1}),\, t_{b:b+1})

    The model gets each sample as a batch of one, so a loss that averages over the batch is the sample's own
    loss. The mean of the result over its first dimension is what ``backward`` puts into ``.grad`` if the loss gives
    every sample the same weight.

    Args:
        model: any module; its ``.grad`` and buffers are not changed.
        loss_fn: called with the model's output and the targets; returns a scalar, a tensor or MaskedTensor.
        inputs: a tensor (B, ...), a tuple of positional or a dict of keyword arguments of the model, in containers of
            any kind. The first dimension of every tensor or MaskedTensor is that of samples; other values
            are passed on unchanged.
        targets: the same for ``loss_fn``, as one argument; None: ``loss_fn`` gets the output only.
        chunk_size: number of samples that are processed at once; None: all. Fewer need less memory for activations.
        method: ``"batched"``: all samples at once, under ``torch.vmap``; ``"loop"``: one by one; ``"auto"``: batched
            if the model allows it, otherwise the loop, with a warning.

    Returns:
        ``{name: (B, *shape)}`` for the parameters that require a gradient, named as in ``model.named_parameters()``;
        zeros for one that is not used. Tables looked up with ``sparse=True`` have COO tensors (B, V, D), with two
        sparse dimensions and only the rows that each sample looked up, merged.

    Samples whose loss is unspecified have exact zeros, for any inputs. Gradient: none, the result is not part of a
    graph. For other nodes than parameters see ``mg.batched_grad``.

    Raises:
        CoupledSamplesError: a BatchNorm in training mode: a sample has no gradient of its own.
        TypeError: ``model`` is not a module, ``inputs`` contains no tensor, or ``loss_fn`` returns no tensor.
        ValueError: tensors have different numbers of samples, ``loss_fn`` returns more than one value per sample, no
            parameter requires a gradient, or an option is unknown.

    Dense equivalent: a loop over the samples with ``torch.autograd.grad``.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x, t = torch.tensor([[1., 2.], [3., 4.]]), torch.zeros(2, 1)
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(1.0)
        >>> mg.per_sample_grad(model, torch.nn.functional.mse_loss, x, t)["weight"]
        tensor([[[ 6., 12.]],
        <BLANKLINE>
                [[42., 56.]]])

    Source: ``torch.func.vmap`` of ``torch.func.grad``.
    """
    task = PerSample(model, loss_fn, inputs, targets, chunk_size, method)
    chunks = list(task.chunks())
    return {name: _gradient(task, name, chunks) for name in task.parameters}


def _gradient(task: PerSample, name: str, chunks: list[Chunk]) -> Tensor:
    """Return the gradients of all chunks by one parameter: COO if they are wherever it is used."""
    parts = [chunk.gradients.pop(name, None) for chunk in chunks]
    used = [part for part in parts if part is not None]
    sparse = all(part.layout is torch.sparse_coo for part in used) if used else name in task.sparse.values()
    found = []
    for chunk, part in zip(chunks, parts, strict=True):
        some = task.zeros(name, len(chunk.specified), sparse) if part is None else part
        found.append(some if sparse else some.to_dense())
    whole = found[0] if len(found) == 1 else torch.cat(found or [task.zeros(name, 0, sparse)])
    return whole._coalesced_(True) if sparse else whole  # in order, as the parts are


def per_sample_grad_norms(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    inputs: Any,
    targets: Any = None,
    *,
    chunk_size: int | None = None,
    method: Method = "auto",
) -> Tensor:
    r"""Return the 2-norm of every sample's gradient over all parameters.

    .. math:: n_b = \left(\sum_\theta \lVert G_b^\theta \rVert^2\right)^{1/2}

    Args:
        model: as for :func:`maskgrad.per_sample_grad`, like the other arguments.
        loss_fn: one scalar per sample.
        inputs: a batch of B samples.
        targets: the samples' targets.
        chunk_size: number of samples that are processed at once; None: all.
        method: ``"auto"``, ``"batched"`` or ``"loop"``.

    Returns:
        (B,), in at least float32; 0 for a sample whose loss is unspecified.

    Gradient: none.

    Raises:
        CoupledSamplesError, TypeError, ValueError: as :func:`maskgrad.per_sample_grad`.

    Dense equivalent: the norms of the result of :func:`maskgrad.per_sample_grad`.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(1.0)
        >>> x, t = torch.tensor([[3., 4.], [0., 0.]]), torch.zeros(2, 1)
        >>> mg.per_sample_grad_norms(model, torch.nn.functional.mse_loss, x, t)
        tensor([70.,  0.])
    """
    task = PerSample(model, loss_fn, inputs, targets, chunk_size, method)
    norms = [_norms(task, chunk) for chunk in task.chunks()]
    return torch.cat(norms) if norms else torch.zeros(0, device=task.device)


@torch.no_grad()
def clipped_backward(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    inputs: Any,
    targets: Any = None,
    *,
    max_norm: float,
    reduction: Literal["sum", "mean"] = "mean",
    chunk_size: int | None = None,
    method: Method = "auto",
) -> Tensor:
    r"""Run backward with every sample's gradient clipped: DP-SGD's gradient, before noise is added.

    .. math:: \text{grad} +\!= \sum_b \min\left(1, \frac{\text{max\_norm}}{n_b + 10^{-6}}\right)\, G_b

    No sample contributes more than ``max_norm`` to the sum; one forward and one backward pass compute norms and sum.

    Args:
        model: as for :func:`maskgrad.per_sample_grad`, like the other arguments.
        loss_fn: one scalar per sample.
        inputs: a batch of B samples.
        targets: the samples' targets.
        max_norm: the largest norm of one sample's gradient over all parameters.
        reduction: ``"sum"``, or ``"mean"``: divided by the number of samples whose loss is specified.
        chunk_size: number of samples that are processed at once; None: all.
        method: ``"auto"``, ``"batched"`` or ``"loop"``.

    Returns:
        The norms before clipping, (B,).

    Added to ``.grad`` as ``backward`` does, COO for tables looked up with ``sparse=True``. An unused
    parameter keeps its ``.grad``, None included. If a sample's gradient is not finite, the sum is not.

    Raises:
        CoupledSamplesError, TypeError: as :func:`maskgrad.per_sample_grad`.
        ValueError: ``max_norm`` is negative or NaN, ``reduction`` is unknown, and as there. Nothing is changed.

    Dense equivalent: ``torch.nn.utils.clip_grad_norm_`` on each sample's gradient, and a sum.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(1.0)
        >>> x, t = torch.tensor([[3., 4.], [.5, 0.]]), torch.zeros(2, 1)
        >>> mg.clipped_backward(model, torch.nn.functional.mse_loss, x, t, max_norm=1.0, reduction="sum")
        tensor([70.0000,  0.5000])
        >>> model.weight.grad
        tensor([[1.1000, 0.8000]])

    Source: Abadi et al., "Deep learning with differential privacy", 2016.
    """
    limit = limit_of("max_norm", max_norm)
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', found {reduction!r}")
    task = PerSample(model, loss_fn, inputs, targets, chunk_size, method)
    sums: dict[str, Tensor] = {}
    norms, counted = [], 0
    for chunk in task.chunks():
        norms.append(_norms(task, chunk))
        weights = (limit / (norms[-1] + 1e-6)).clamp(max=1.0)
        counted += int(chunk.specified.sum())
        for name, gradients in chunk.gradients.items():
            with _without_autocast(task):
                added = weighted_sum(gradients, weights)
            sums[name] = added if name not in sums else _sum(sums[name], added)
    for name, total in sums.items():
        parameter = task.parameters[name]
        mean = total / max(counted, 1) if reduction == "mean" else total
        gradient = mean.to(parameter.dtype)
        parameter.grad = gradient if parameter.grad is None else _sum(parameter.grad, gradient)
    return torch.cat(norms) if norms else torch.zeros(0, device=task.device)


def _without_autocast(task: PerSample) -> torch.autocast:
    """Return a context in which gradients keep the dtype of their parameters, as those of ``backward`` do."""
    return torch.autocast(task.device.type, enabled=False)


def _norms(task: PerSample, chunk: Chunk) -> Tensor:
    with _without_autocast(task):
        squares = [squared_norms(gradients) for gradients in chunk.gradients.values()]
    if not squares:
        return torch.zeros(len(chunk.specified), device=task.device)
    # A model may have parameters of several dtypes, and on several devices.
    dtype = max((x.dtype for x in squares), key=lambda d: d.itemsize)
    return torch.stack([x.to(squares[0].device, dtype) for x in squares]).sum(0).sqrt()


def _sum(a: Tensor, b: Tensor) -> Tensor:
    return a + b if a.layout is torch.strided else b + a  # dense if one of them is
