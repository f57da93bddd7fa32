"""The masked arguments of a sample, their masks, and the garbage under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

import maskgrad as mg
from tests.laws.any_type.operator_database import Entry
from tests.laws.any_type.samples import THIN, Effort, Sample, strided

__all__ = ["GARBAGE", "Call", "Plan", "fully_specified", "garbage_of", "plans_for"]

#: Operations whose first tensor only is data; the others select entries, and must be fully specified.
ONLY_FIRST_IS_DATA = {
    "gather": "the index",
    "masked_select": "which entries are selected",
    "take": "the index",
    "take_along_dim": "the index",
    "__getitem__": "the index",
    "index_select": "the index",
    "narrow": "the start",
    "repeat_interleave": "the repetitions",
    "tensor_split": "the indices",
    "to": "the tensor whose dtype and device are wanted",
}

#: Arguments by position that are plain tensors of the program's own: torch writes to them, without gradients.
BUFFERS = {
    "nn.functional.batch_norm": (1, 2),
    "nn.functional.instance_norm": (1, 2),
    "native_batch_norm": (3, 4),
}

#: Operands, by position or keyword, for which torch has no derivative.
CONSTANTS: dict[str, tuple[int | str, ...]] = {
    "nn.functional.cross_entropy": ("weight",),
    "nn.functional.linear_cross_entropy": ("weight",),
    "nn.functional.nll_loss": ("weight",),
    "nn.functional.multi_margin_loss": ("weight",),
    "nn.functional.binary_cross_entropy": ("weight",),
    "nn.functional.binary_cross_entropy_with_logits": ("weight", "pos_weight"),
    "nn.functional.soft_margin_loss": (1,),
    "linalg.pinv": ("atol", "rtol"),
}

#: Operands that must be plain, because torch reads them before dispatching.
LOOKED_AT: dict[str, tuple[int | str, ...]] = {"nn.functional.multi_head_attention_forward": ("attn_mask",)}
#: … and those that select entries, and must be fully specified.
MEANT: dict[str, tuple[int | str, ...]] = {
    **dict.fromkeys(("scatter", "index_copy", "index_fill"), (2, "index")),
    **dict.fromkeys(("index_put", "put", "masked_scatter"), (1,)),
}
PLAIN = LOOKED_AT | MEANT


class Plan(NamedTuple):
    """One mask for each data operand; None for a plain tensor."""

    name: str
    masks: tuple[Tensor | None, ...]


@dataclass
class Call:
    """A flattened sample: its tensors, which of them are data, and its structure."""

    tensors: list[Tensor]
    data: list[int]
    _leaves: list[Any]
    _positions: list[int]
    _spec: Any
    constants: frozenset[int] = frozenset()
    form: str = "as it comes"

    @classmethod
    def of(cls, entry: Entry, sample: Sample) -> Call:
        """Flatten a sample of the entry."""
        leaves, spec = tree_flatten((sample.args, sample.kwargs))
        positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[i] for i in positions]
        data = [i for i, position in enumerate(positions) if position not in BUFFERS.get(entry.name, ())]
        if entry.name == "nn.functional.embedding_bag":  # offsets must be fully specified
            data = [i for i in data if i < 2 or tensors[i].is_floating_point()]
        if entry.name in ONLY_FIRST_IS_DATA:
            data = data[:1]
        plain = places_of(sample, PLAIN.get(entry.name, ()))
        data = [i for i in data if i not in plain]
        return cls(tensors, data, leaves, positions, spec, constants_of(entry, sample), entry.form)

    @property
    def moving(self) -> list[int]:
        """The data that may have a derivative."""
        return [i for i in self.data if i not in self.constants]

    @property
    def first_is_tensor(self) -> bool:
        """Return whether the first argument is a tensor, so that it can be written to."""
        args, _ = tree_unflatten(self._leaves, self._spec)
        return isinstance(args[0], Tensor)

    def with_tensors(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with other tensors (or MaskedTensors) instead of its own."""
        leaves = list(self._leaves)
        for position, tensor in zip(self._positions, tensors, strict=True):
            leaves[position] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        return args, kwargs

    def leaves(
        self, differentiable: bool, plan: Plan | None = None, garbage: str | None = None
    ) -> list[Tensor]:
        """Fresh copies of the tensors, garbage under the masks of ``plan``, float data requiring gradients."""
        masks = self.masks(plan) if plan else [None] * len(self.tensors)
        fresh = []
        for i, (tensor, mask) in enumerate(zip(self.tensors, masks, strict=True)):
            # strides are kept; expanded samples become writable
            copy = self.like_sample(tensor.detach().clone())
            if mask is not None and garbage is not None:
                copy = self.like_sample(torch.where(mask, copy, garbage_of(garbage, tensor.dtype)))
            inexact = tensor.is_floating_point() or tensor.is_complex()
            fresh.append(copy.requires_grad_(differentiable and inexact and i in self.moving))
        return fresh

    def like_sample(self, tensor: Tensor) -> Tensor:
        """Give a contiguous copy the strides of the sample again."""
        return strided(tensor) if self.form == "strided" else tensor

    def masks(self, plan: Plan) -> list[Tensor | None]:
        """The plan's masks in the order of all tensors; None for plain ones."""
        masks: list[Tensor | None] = [None] * len(self.tensors)
        for i, mask in zip(self.data, plan.masks, strict=True):
            masks[i] = mask
        return masks

    def masked(
        self, leaves: Sequence[Tensor], plan: Plan, make: Callable[[Tensor, Tensor], Any] = mg.masked
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with masked tensors where the plan has masks."""
        pairs = zip(leaves, self.masks(plan), strict=True)
        return self.with_tensors([leaf if mask is None else make(leaf, mask) for leaf, mask in pairs])


def constants_of(entry: Entry, sample: Sample) -> frozenset[int]:
    """Indices of the tensors for which torch has no derivative."""
    if entry.name == "scatter" and "reduce" in sample.kwargs:  # torch has no derivative at all
        return frozenset(range(len(sample.tensors())))
    return places_of(sample, CONSTANTS.get(entry.name, ()))


def places_of(sample: Sample, names: tuple[int | str, ...]) -> frozenset[int]:
    """Indices of the tensors in arguments with these positions or names."""
    found, _ = tree_flatten_with_path((sample.args, sample.kwargs))
    # the last step is (position) in the positional arguments or (name) in the keyword arguments
    steps = [
        getattr(path[1], "idx", getattr(path[1], "key", None))
        for path, leaf in found
        if isinstance(leaf, Tensor)
    ]
    return frozenset(i for i, step in enumerate(steps) if step in names)


def fully_specified(call: Call) -> Plan:
    """Masks that are True everywhere."""
    data = [call.tensors[i] for i in call.data]
    return Plan("all specified", tuple(torch.ones(t.shape, dtype=torch.bool, device=t.device) for t in data))


def plans_for(call: Call, effort: Effort) -> Iterator[Plan]:
    """Every operand masked, at several densities and with different masks; then each operand alone."""
    generator = torch.Generator().manual_seed(0)

    def mask(i: int, density: float) -> Tensor:
        drawn = torch.rand(call.tensors[i].shape, generator=generator, dtype=torch.float32)
        return call.like_sample(drawn < density)

    for density in effort.densities:
        plan = Plan(f"all masked, density {density}", tuple(mask(i, density) for i in call.data))
        if density in THIN or not effort.thinned:
            yield plan
    if len(call.data) < 2 or not effort.alone:
        return
    for alone in call.data:
        yield Plan(f"operand {alone} alone", tuple(mask(i, 0.5) if i == alone else None for i in call.data))
    whole = call.data[-1]
    masks = tuple(
        mask(i, 0.5) if i != whole else torch.ones(call.tensors[i].shape, dtype=torch.bool) for i in call.data
    )
    yield Plan(f"operand {whole} specified, the others masked", masks)


#: Garbage under the mask, by kind of dtype; every row must give the same bits.
GARBAGE: dict[str, dict[str, Any]] = {
    "ordinary": {"float": 7.0, "complex": 7.0 + 1j, "integer": 7, "bool": True},
    "nan": {"float": float("nan"), "complex": complex("nan+nanj"), "integer": 0, "bool": False},
    "inf": {"float": float("inf"), "complex": complex("inf+nanj"), "integer": "highest", "bool": True},
    "-inf": {"float": float("-inf"), "complex": complex("-inf+infj"), "integer": "lowest", "bool": False},
    "-1e30": {"float": -1e30, "complex": -1e30 + 1e30j, "integer": -1, "bool": True},
}


def garbage_of(kind: str, dtype: torch.dtype) -> Tensor:
    """One row of :data:`GARBAGE` as a tensor of ``dtype``."""
    row = GARBAGE[kind]
    if dtype == torch.bool:
        value = row["bool"]
    elif dtype.is_complex:
        value = row["complex"]
    elif dtype.is_floating_point:
        value = row["float"]
    else:
        value, limits = row["integer"], torch.iinfo(dtype)
        value = {
            "highest": limits.max,
            "lowest": limits.min,
            -1: limits.max - 1 if limits.min == 0 else -1,
        }.get(value, value)
    return torch.tensor(value, dtype=dtype)
