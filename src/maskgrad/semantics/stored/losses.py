"""Losses that compare operands position by position: over the positions at which all of them have an entry."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.patterns.eager import can_read_values
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.losses.adding_up import added_up, adds_up
from maskgrad.semantics.losses.reduction import reduction_named
from maskgrad.semantics.losses.regression import forgotten_weight
from maskgrad.semantics.numbers import number
from maskgrad.semantics.stored.elementwise import apply
from maskgrad.semantics.stored.entries import Stored, is_masked, shape_of
from maskgrad.semantics.stored.groups import grouped
from maskgrad.semantics.stored.reductions import mean, over_groups, total
from maskgrad.semantics.stored.views import unsqueeze

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES"]

#: Arguments that have an entry for each position, in the order in which a formula receives them.
OPERANDS = ("input", "input1", "input2", "target", "var", "weight", "pos_weight")
#: Losses whose mean divides by the sum of the weights, and not by the number of positions.
BY_WEIGHT = ("mse_loss", "l1_loss")
#: PyTorch warns of operands of two shapes, or refuses them.
WARNED, REFUSED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), ("binary_cross_entropy",)


def _gaussian(values: dict[str, Any], full: bool, eps: float) -> Tensor:
    variance = values["var"].clone()
    with torch.no_grad():  # the gradient passes the limit, as in PyTorch
        variance.clamp_(min=eps)
    loss: Tensor = 0.5 * (torch.log(variance) + (values["input"] - values["target"]) ** 2 / variance)
    return loss + 0.5 * math.log(2 * math.pi) if full else loss


def _check_shapes(name: str, arguments: dict[str, Any]) -> None:
    a, b = shape_of(arguments.get("input")), shape_of(arguments.get("target"))
    if a == b:
        return
    if name.startswith(REFUSED):
        raise ValueError(f"Target size ({b}) must be the same as input size ({a})")
    if name in WARNED:
        warnings.warn(
            f"Using a target size ({b}) that is different to the input size ({a}). This will likely lead to incorrect "
            "results due to broadcasting. Please ensure they have the same size.",
            stacklevel=2,
        )


def _variance(var: Any, input: Any) -> Any:
    """``var`` as a tensor that broadcasts to the input."""
    if isinstance(var, float):
        var = torch.tensor(var, dtype=input.values.dtype if is_masked(input) else input.dtype)
    values = var.values if is_masked(var) else var
    if isinstance(var, (Stored, Tensor)) and can_read_values(values) and bool((values < 0).any()):
        raise ValueError("var has negative entry/entries")
    if shape_of(var) and shape_of(var) == shape_of(input)[:-1]:
        return unsqueeze(var, -1) if isinstance(var, Stored) else var.unsqueeze(-1)
    return var


def _rule(name: str) -> Callable[..., Any]:
    signature = inspect.signature(getattr(F, name))

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is not getattr(F, name):  # torch.kl_div, …: the internal twins
            raise UnsupportedLayoutError(f"torch.{name}", torch.sparse_coo)
        options = dict(signature.bind(*args, **kwargs).arguments)
        if name == "l1_loss" and options.get("weight") is None:
            options["weight"] = forgotten_weight()
        asked = options.pop("reduction", "mean")
        legacy = options.pop("size_average", None), options.pop("reduce", None)
        by_row = name == "kl_div" and asked == "batchmean" and legacy == (None, None)
        reduction = "sum" if by_row else reduction_named(*legacy, asked)
        _check_shapes(name, options)
        if name == "gaussian_nll_loss":
            options["var"] = _variance(options["var"], options["input"])
        names = [k for k in OPERANDS if is_masked(options.get(k)) or isinstance(options.get(k), Tensor)]
        operands = [options.pop(k) for k in names]
        weight = options.pop("weight", None) if name in BY_WEIGHT else None
        assert weight is None  # a weight is a tensor
        positions = _positions(name, function, names, operands, options)
        if type(positions) is tuple:
            loss, weights = positions
            if reduction != "mean":
                positions = loss
            else:
                sums = [over_groups(total)(part) for part in (loss, weights)]
                return _divided(sums[0], sums[1].values)
        if reduction == "none":
            return positions
        if not by_row and not adds_up():
            reduced = over_groups(mean if reduction == "mean" else total)(positions)
            return number(reduced, math.nan if reduction == "mean" else 0)
        summed = over_groups(total)(positions)
        if not by_row:
            return _divided(summed, positions.entries.numel() if reduction == "mean" else None)
        others = tuple(range(1, len(positions.shape)))
        return _divided(
            summed, grouped(positions, others)[0].number if others else positions.entries.shape[0]
        )

    return body


def _divided(summed: Any, divisor: Tensor | int | None) -> Tensor:
    """A total, or that of several processes, by its divisor; where there was nothing it is NaN, without one 0."""
    values, known = summed.values, summed.mask
    by = torch.as_tensor(1 if divisor is None else divisor, device=values.device)
    if adds_up():
        parts = torch.where(known, values, 0), torch.where(known, by, 0), known.to(torch.int64)
        values, by, some = added_up(*parts)
        known = some > 0
    if divisor is None:
        return number(Entries(values, known), 0)
    return number(Entries(values / torch.where(known, by, 1), known), math.nan)


def _positions(
    name: str, function: Callable[..., Any], names: list[str], operands: list[Any], options: dict[str, Any]
) -> Any:
    """The loss of each position; with its weight, if the mean divides by the weights."""

    def run(values: list[Any]) -> Any:
        named = dict(zip(names, values, strict=True))
        if name == "gaussian_nll_loss":
            return _gaussian(named, options.get("full", False), options.get("eps", 1e-6))
        if name in BY_WEIGHT and "weight" in named:
            weight = named.pop("weight")
            loss = function(**named, **options, reduction="none") * weight
            return loss, weight.expand(loss.shape)
        return function(**named, **options, reduction="none")

    return apply(run, operands)


RULES: dict[str, Callable[..., Any]] = {
    f"nn.functional.{name}": _rule(name)
    for name in (
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "soft_margin_loss",
        "poisson_nll_loss",
        "gaussian_nll_loss",
        "kl_div",
        "hinge_embedding_loss",
        "margin_ranking_loss",
    )
}
