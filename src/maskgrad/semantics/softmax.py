"""Softmax and its relatives: over the specified entries of a dimension; a slice without any is unspecified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from maskgrad import kernels
from maskgrad.kernels.softmax import absent
from maskgrad.semantics.dimensions import as_dim, as_dims
from maskgrad.semantics.entries import Entries, converted
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.numbers import REDUCED, Number
from maskgrad.semantics.signatures import bound

PATTERN = "that of the input"
GRADIENT = "torch's, over the specified entries"


def _as(input: Entries, dtype: torch.dtype | None) -> Entries:
    return input if dtype is None else converted(input, dtype)


def softmax(input: Entries, dim: int, dtype: torch.dtype | None = None) -> Entries:
    """``exp(x) / sum(exp(x))`` over the specified entries of ``dim``."""
    return _softmax(_as(input, dtype), dim, False)


def log_softmax(input: Entries, dim: int, dtype: torch.dtype | None = None) -> Entries:
    """``x - log(sum(exp(x)))`` over the specified entries of ``dim``."""
    return _softmax(_as(input, dtype), dim, True)


def softmin(input: Entries, dim: int, dtype: torch.dtype | None = None) -> Entries:
    """The softmax of the negated entries."""
    return softmax(Entries(-input.values, input.mask), dim, dtype)


def _softmax(input: Entries, dim: int, logarithm: bool) -> Entries:
    """Softmax, or its logarithm; values at unspecified entries are arbitrary."""
    values, mask = input
    return Entries(kernels.masked_softmax(values, mask, as_dim(dim, mask.ndim), logarithm), mask)


def safe_softmax(input: Entries, dim: int, dtype: torch.dtype | None = None) -> Entries:
    """The softmax whose specified entries may all be -inf: they become zeros then."""
    input = _as(input, dtype)
    safe = absent(input.values, input.mask, (as_dim(dim, input.mask.ndim),))
    return Entries(torch.ops.aten._safe_softmax(safe, dim), input.mask)


def _with_dim(rule: Callable[..., Entries]) -> Callable[..., Entries]:
    """The rule for both signatures: ``torch.softmax(x, dim, dtype)`` and ``F.softmax(x, dim, _stacklevel, dtype)``."""
    name = rule.__name__
    implicit = getattr(F, name, None)  # only these choose a default dimension, with a warning

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 2 and not kwargs and args[1] is not None:
            return rule(*args)
        names = "input dim _stacklevel dtype" if function is implicit else "input dim dtype"
        named = bound(names, args, kwargs)
        level = named.pop("_stacklevel", 3)
        if named.get("dim") is None and function is implicit:
            ndim = named["input"].mask.ndim
            named["dim"] = F._get_softmax_dim(name, ndim, level)  # type: ignore[attr-defined]
        return rule(**named)

    return body


def logsumexp(input: Entries, dim: Any, keepdim: bool = False) -> Entries:
    """``log(sum(exp(x)))`` over the specified entries."""
    values, mask = input
    if not (values.is_floating_point() or values.is_complex()):
        values = values.to(torch.get_default_dtype())
    return Entries(*kernels.masked_logsumexp(values, mask, as_dims(dim, values.ndim), keepdim))


def gumbel_softmax(
    logits: Entries, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Entries:
    """Sample from the Gumbel-softmax distribution of the specified logits; other entries are never drawn."""
    if eps != 1e-10:
        F.gumbel_softmax(logits.values.new_zeros(1), tau, hard, eps)  # torch warns that it is not used
    values, mask = logits
    noise = torch.empty_like(values, memory_format=torch.legacy_contiguous_format).exponential_().log()
    soft = softmax(Entries((values - noise) / tau, mask), dim).values
    if not hard:
        return Entries(soft, mask)
    # Below every probability, so that the drawn class is a specified one.
    drawn = torch.where(mask, soft, -1).max(dim, keepdim=True)[1]
    one_hot = torch.zeros_like(soft, memory_format=torch.legacy_contiguous_format).scatter_(dim, drawn, 1.0)
    return Entries(one_hot - soft.detach() + soft, mask)


SAFE = torch.ops.aten._safe_softmax, torch.ops.aten._safe_softmax.default, torch._safe_softmax
DRAWN = PATTERN, "that of the softmax, also for hard=True"
SUMMED = REDUCED, "the softmax of the specified entries"

OPERATIONS = (
    record("softmax", "softmax", _with_dim(softmax), PATTERN, GRADIENT, padded="rows"),
    record("log_softmax", "softmax", _with_dim(log_softmax), PATTERN, GRADIENT, padded="rows"),
    record("nn.functional.softmin", "softmax", _with_dim(softmin), PATTERN, GRADIENT, padded="rows"),
    record(
        "_safe_softmax", "softmax", _with_dim(safe_softmax), PATTERN, GRADIENT, padded="rows", functions=SAFE
    ),
    of_rule(logsumexp, "reductions", *SUMMED, number=Number(float("-inf")), padded="mask"),
    record("nn.functional.gumbel_softmax", "softmax", gumbel_softmax, *DRAWN, padded="rows"),
)
