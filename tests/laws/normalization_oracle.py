"""Normalisation, by deletion: torch's own function on the entries that each group has left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import arguments_of, in_their_places, per_group

__all__ = ["normalization"]

Group = Callable[[Tensor], Any]


def by_groups(function: Group, x: Tensor, mask: Tensor, dims: Sequence[int]) -> Tensor:
    """Apply ``function`` to the specified entries of each group along ``dims``; put its results in their places."""
    ((found, _),) = per_group(
        in_their_places(lambda left: function(left) if len(left) else left), x, mask, dims
    )
    dims = [d % max(x.ndim, 1) for d in dims]
    order = [*(d for d in range(x.ndim) if d not in dims), *dims] if x.ndim else []
    return found.reshape([x.shape[d] for d in order]).permute([order.index(d) for d in range(x.ndim)])


def statistics(
    function: Callable[[Tensor], Tensor], x: Tensor, mask: Tensor, dims: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """One number for each group, and where there is a group to take it from; the dimensions are kept."""
    spread = by_groups(lambda left: function(left).expand(left.shape), x, mask, dims)
    dims = tuple(dims)
    present = mask.sum(dims, keepdim=True)
    return spread.sum(dims, keepdim=True) / present.clamp(min=1), present > 0


def laid(parameter: Tensor | None, shape: Sequence[int], otherwise: Any) -> Any:
    return otherwise if parameter is None else parameter.reshape(shape)


class Arguments:
    """The arguments of a call by name, tensors with their masks."""

    def __init__(
        self, entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor], names: str
    ) -> None:
        self.values, self.masks = (arguments_of(entry, call, tensors, names) for tensors in (leaves, masks))

    def __call__(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def affine(self, standardized: Tensor, mask: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Weight and bias applied, and the intersection of all masks."""
        for name in ("weight", "bias"):
            mask = mask & laid(self.masks.get(name), shape, True)
        # a NaN next to an unspecified weight concerns nobody
        safe = torch.where(mask, standardized, 0)
        return safe * laid(self("weight"), shape, 1) + laid(self("bias"), shape, 0), mask


def standardized(x: Tensor, mask: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    return by_groups(lambda left: F.layer_norm(left, left.shape, eps=eps), x, mask, dims)


def moments(x: Tensor, mask: Tensor, dims: Sequence[int], eps: float) -> list[tuple[Tensor, Tensor]]:
    """Mean and reciprocal deviation, for which torch gives no gradient (except ``native_group_norm``)."""
    return [
        statistics(torch.mean, x, mask, dims),
        statistics(lambda left: (left.var(correction=0) + eps).rsqrt(), x, mask, dims),
    ]


def over_last(entry: Entry, given: Arguments) -> tuple[Any, list[Tensor]]:
    """``layer_norm`` and ``rms_norm``."""
    x, mask, shape = given("input"), given.masks["input"], given("normalized_shape")
    dims = range(x.ndim - len(shape), x.ndim)
    eps = given("eps") if "rms" in entry.name else given("eps", 1e-5)
    if "rms" in entry.name:
        whole = by_groups(lambda left: F.rms_norm(left, left.shape, eps=eps), x, mask, dims)
    else:
        whole = standardized(x, mask, dims, eps)
    out, known = given.affine(whole, mask, shape)
    if not entry.name.startswith("native"):
        return out, [known]
    extra = moments(x, mask, dims, eps)
    return (out, *[value.detach() for value, _ in extra]), [known, *[present for _, present in extra]]


def over_groups(entry: Entry, given: Arguments) -> tuple[Any, list[Tensor]]:
    """``group_norm``."""
    x, mask = given("input"), given.masks["input"]
    eps, groups = given("eps", 1e-5), given("num_groups")
    split, present = x.unflatten(1, (groups, -1)), mask.unflatten(1, (groups, -1))
    dims = range(2, split.ndim)
    whole = standardized(split, present, dims, eps).flatten(1, 2)
    out, known = given.affine(whole, mask, (-1, *[1] * (x.ndim - 2)))
    if not entry.name.startswith("native"):
        return out, [known]
    extra = moments(split, present, dims, eps)
    return (out, *[value.flatten(1) for value, _ in extra]), [
        known,
        *[where.flatten(1) for _, where in extra],
    ]


def over_channels(entry: Entry, given: Arguments) -> tuple[Any, list[Tensor]]:
    """``batch_norm`` and ``instance_norm``."""
    x, mask, eps = given("input"), given.masks["input"], given("eps", 1e-5)
    per_sample = "instance" in entry.name
    shape = (-1, *[1] * (x.ndim - 2))
    dims = [d for d in range(x.ndim) if d != 1 and not (per_sample and d == 0)]
    native = "native" in entry.name
    if given("use_input_stats" if per_sample else "training", per_sample):
        out, known = given.affine(standardized(x, mask, dims, eps), mask, shape)
        extra = (
            [(value.reshape(-1), where.reshape(-1)) for value, where in moments(x, mask, dims, eps)]
            if native
            else []
        )
    else:
        mean, variance = given("running_mean").reshape(shape), given("running_var").reshape(shape)
        out, known = given.affine((x - mean) / (variance + eps).sqrt(), mask, shape)
        for name in ("running_mean", "running_var"):
            known = known & given.masks[name].reshape(shape)
        extra = [(x.new_empty(0), mask.new_empty(0))] * 2
    if not native:
        return out, [known]
    return (out, *[value.detach() for value, _ in extra]), [known, *[where for _, where in extra]]


def over_vectors(entry: Entry, given: Arguments) -> tuple[Any, list[Tensor]]:
    """``normalize`` and ``renorm``."""
    x, mask = given("input"), given.masks["input"]
    if entry.name == "renorm":
        dims = [d for d in range(x.ndim) if d != given("dim") % x.ndim]
        p, largest = given("p"), given("maxnorm")
        return by_groups(lambda left: torch.renorm(left[None], p, 0, largest)[0], x, mask, dims), [mask]
    dim = given("dim", 1)
    options = {name: given.values[name] for name in ("p", "eps") if name in given.values}
    dims = [dim] if isinstance(dim, int) else list(dim)
    return by_groups(lambda left: F.normalize(left, dim=0, **options), x, mask, dims), [mask]


def neighbours(entry: Entry, given: Arguments) -> tuple[Any, list[Tensor]]:
    """``local_response_norm``: an absent neighbour is one beyond the border, where torch counts 0."""
    x, mask = given("input"), given.masks["input"]
    rest = {name: given.values[name] for name in ("size", "alpha", "beta", "k") if name in given.values}
    return F.local_response_norm(torch.where(mask, x, 0), **rest), [mask]


PYTHON = "input running_mean running_var weight bias training momentum eps"
NATIVE = "input weight bias running_mean running_var training momentum eps"

RULES: dict[str, tuple[Callable[[Entry, Arguments], tuple[Any, list[Tensor]]], str]] = {
    "nn.functional.layer_norm": (over_last, "input normalized_shape weight bias eps"),
    "native_layer_norm": (over_last, "input normalized_shape weight bias eps"),
    "nn.functional.rms_norm": (over_last, "input normalized_shape weight eps"),
    "nn.functional.group_norm": (over_groups, "input num_groups weight bias eps"),
    "native_group_norm": (over_groups, "input weight bias N C HxW num_groups eps"),
    "nn.functional.batch_norm": (over_channels, PYTHON),
    "nn.functional.instance_norm": (over_channels, PYTHON.replace("training", "use_input_stats")),
    "native_batch_norm": (over_channels, NATIVE),
    "nn.functional.normalize": (over_vectors, "input p dim eps"),
    "renorm": (over_vectors, "input p dim maxnorm"),
    "nn.functional.local_response_norm": (neighbours, "input size alpha beta k"),
}


def normalization(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Any, list[Tensor]]:
    """The rule of the entry, on its arguments by name."""
    rule, names = RULES[entry.name]
    return rule(entry, Arguments(entry, call, leaves, masks, names))
