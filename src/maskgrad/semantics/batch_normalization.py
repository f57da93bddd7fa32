"""Batch and instance normalisation: statistics of the specified entries of a channel, running statistics included.

In training a channel is standardized by its specified entries, and the running statistics follow them, with torch's
momentum and the unbiased variance. A channel without entries does not change its running statistics; a single entry
has no variance, and updates the running mean only. In evaluation the operation is elementwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.smallest import is_complete
from maskgrad.semantics.entries import Entries, as_entries, filled
from maskgrad.semantics.facts import Operation, record
from maskgrad.semantics.normalization import (
    GRADIENT,
    Parameter,
    affine,
    channels,
    parameters_mask,
    standardize,
    without_rows,
)
from maskgrad.semantics.signatures import paired

PATTERN = "the input's, where weight, bias and the running statistics that are used are specified too"


class Arguments(NamedTuple):
    """Arguments of every form of batch and instance normalisation, independent of their order."""

    input: Any
    running_mean: Parameter = None
    running_var: Parameter = None
    weight: Parameter = None
    bias: Parameter = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Statistics, weight and bias."""
        return self.running_mean, self.running_var, self.weight, self.bias

    def safe(self, training: bool) -> tuple[Any, ...]:
        """The arguments of ``F.batch_norm`` after its input, as plain tensors."""
        statistics = (filled(self.running_mean, 0), filled(self.running_var, 1))
        return (*statistics, filled(self.weight, 1), filled(self.bias, 1), training, self.momentum, self.eps)


def _result_dtype(values: Tensor, given: Arguments) -> torch.dtype:
    """Dtype of the result, from torch, which checks the arguments: on no samples, so that statistics stay unchanged."""
    follows = given.running_mean is not None and given.running_var is not None
    given = given if follows else given._replace(running_mean=None, running_var=None)
    return F.batch_norm(without_rows(values), *given.safe(not follows)).dtype


def _evaluated(x: Entries, given: Arguments) -> Entries:
    """Apply given statistics, an elementwise operation."""
    values = F.batch_norm(filled(x), *given.safe(False))
    return Entries(values, parameters_mask(x.mask, channels(values), *given.parameters))


def follow(running: Parameter, observed: Tensor, known: Tensor, momentum: float) -> None:
    """Update a running statistic, in place, where a statistic of the batch is specified."""
    if running is None:
        return
    if isinstance(running, Entries):
        running, known = running.values, known & running.mask
    with torch.no_grad():
        moved = momentum * observed + (1 - momentum) * running.to(observed.dtype)
        running.copy_(torch.where(known, moved.to(running.dtype), running))


def unbiased(variance: Tensor, count: Tensor) -> Tensor:
    """The variance divided by one entry less."""
    return variance * count / (count - 1).clamp(min=1)  # dividing integers would give float32


def _standardized(
    x: Entries, dims: tuple[int, ...], given: Arguments, dtype: torch.dtype
) -> tuple[Entries, Tensor, Tensor, Tensor, Tensor]:
    """The result; mean, variance, scale and count of each group, dimensions kept."""
    parts = standardize(x, dims, given.eps)
    out = affine(parts.values, parts.scale, x.mask, given.weight, given.bias, channels(x.values), dtype)
    mean, variance, scale, count = (part.detach() for part in parts[1:])
    return out, mean, variance, scale, count


def normalize_batch(given: Arguments) -> tuple[Entries, Entries, Entries]:
    """Standardize each channel over batch and space; also return mean and scale, empty in evaluation."""
    x = as_entries(given.input)
    values, mask = x
    dtype = _result_dtype(values, given)
    if not given.training:
        nothing = Entries(values.new_empty(0), mask.new_empty(0))
        return _evaluated(x, given), nothing, nothing
    dims = tuple(d for d in range(values.ndim) if d != 1)
    out, *groups = _standardized(x, dims, given, dtype)
    mean, variance, scale, count = (part.reshape(-1) for part in groups)
    follow(given.running_mean, mean, count > 0, given.momentum)
    follow(given.running_var, unbiased(variance, count), count > 1, given.momentum)
    return out, Entries(mean, count > 0), Entries(scale, count > 0)


def batch_norm(given: Arguments) -> Entries:
    """``torch.nn.functional.batch_norm``; calls torch directly if the mask is seen to be complete."""
    x = as_entries(given.input)
    if given.training:
        F._verify_batch_size(list(x.values.shape))  # type: ignore[attr-defined]
        plain = not any(isinstance(parameter, Entries) for parameter in given.parameters)
        if isinstance(given.input, Entries) and plain and is_complete(x.mask):
            return Entries(F.batch_norm(x.values, *given.safe(True)), x.mask)
    return normalize_batch(given)[0]


def instance_norm(given: Arguments) -> Entries:
    """Standardize each channel of each sample over space; running statistics average over the samples with entries."""
    x = as_entries(given.input)
    values = x.values
    if not given.training:
        if given.running_mean is None or given.running_var is None:
            torch.instance_norm(values, None, None, None, None, False, 0.1, 1e-5, False)  # raises
        # The instance norm of PyTorch 2.9, which PyTorch/XLA needs, writes the statistics anew, unchanged; with copies,
        # the backward pass keeps the old ones.
        mean, variance = (
            p.clone() if isinstance(p, torch.Tensor) else p for p in (given.running_mean, given.running_var)
        )
        return _evaluated(x, given._replace(running_mean=mean, running_var=variance))
    F._verify_spatial_size(list(values.shape))  # type: ignore[attr-defined]
    dtype = _result_dtype(values, given)
    out, *groups = _standardized(x, tuple(range(2, values.ndim)), given, dtype)
    mean, variance, _, count = (part.flatten(1) for part in groups)
    for running, observed, known in (
        (given.running_mean, mean, count > 0),
        (given.running_var, unbiased(variance, count), count > 1),
    ):
        average, samples = kernels.masked_mean(observed, known, (0,), False)
        follow(running, average, samples > 0, given.momentum)
    return out


def _native(given: Arguments) -> tuple[Entries, ...]:
    out, *statistics = normalize_batch(given)
    mean, variance, weight, bias, training, momentum, eps = given.safe(given.training)
    if training:  # torch would write to them
        mean, variance = (None if running is None else running.clone() for running in (mean, variance))
    # a batch of size 0 is refused here, one of size 1 when a graph is traced
    sample = out.values.new_zeros((2, out.values.shape[1]))
    _, *like = torch.native_batch_norm(sample, weight, bias, mean, variance, training, momentum, eps)
    return out, *(Entries(e.values.to(t.dtype), e.mask) for e, t in zip(statistics, like, strict=True))


def _with_reserve(given: Arguments) -> tuple[Entries, ...]:
    result = _native(given)
    nothing = result[0].mask.new_empty(0)
    return *result, Entries(nothing.to(torch.uint8), nothing)


PYTHON = " ".join(Arguments._fields)
NATIVE = "input weight bias running_mean running_var training momentum eps cudnn_enabled"
UPDATING = NATIVE.replace(" training", "")


def _record(
    name: str,
    rule: Callable[[Arguments], Any],
    orders: dict[Any, str],
    training: bool = False,
    padded: str = "",
) -> Operation:
    """The record of functions, each with the order in which it takes its arguments."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = {"training": training, **paired(orders[function].split(), args), **kwargs}
        found.pop("cudnn_enabled", None)
        if "use_input_stats" in found:  # its name in instance norms
            found["training"] = found.pop("use_input_stats")
        return rule(Arguments(**found))

    return record(name, "normalization", body, PATTERN, GRADIENT, functions=tuple(orders), padded=padded)


aten, legit = torch.ops.aten, torch.ops.aten._native_batch_norm_legit
natives = (torch.native_batch_norm, torch._native_batch_norm_legit, legit, legit.default)
updating = (aten._batch_norm_with_update, aten._batch_norm_with_update.default)

OPERATIONS = (
    _record(
        "nn.functional.batch_norm",
        batch_norm,
        {F.batch_norm: PYTHON, torch.batch_norm: NATIVE},
        padded="mask",
    ),
    _record("native_batch_norm", _native, dict.fromkeys(natives, NATIVE)),
    _record("_batch_norm_with_update", _with_reserve, dict.fromkeys(updating, UPDATING), training=True),
    _record(
        "nn.functional.instance_norm",
        instance_norm,
        {F.instance_norm: PYTHON, torch.instance_norm: NATIVE},
        training=True,
        padded="rows",
    ),
)
