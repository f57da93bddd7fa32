"""What a result must be, computed without the library: one oracle for each family.

An oracle gets the plain function, a call on clean data, and the mask of each tensor. It returns torch's values,
in the autograd graph of the clean leaves, and the mask of each result. Values outside the masks do not count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.semantics.facts import Operation
from tests.laws.accumulation_oracle import ACCUMULATIONS, accumulates, accumulation
from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.attention_oracle import attention
from tests.laws.contraction_oracle import contraction, convolution
from tests.laws.creation_oracle import creation, gating, random, sum_to_size
from tests.laws.deletion_oracle import reduction
from tests.laws.distance_oracle import distance
from tests.laws.embeddings_oracle import embedding
from tests.laws.linear_algebra_oracle import LINEAR_ALGEBRA
from tests.laws.losses_oracle import loss
from tests.laws.normalization_oracle import normalization
from tests.laws.order_statistics_oracle import ORDER_STATISTICS
from tests.laws.plain_results_oracle import equality, positions
from tests.laws.scans_oracle import SCANS, scan
from tests.laws.sorting_oracle import SORTING
from tests.laws.windows_oracle import interpolation, pooling

__all__ = ["Expected", "expect", "oracle_of"]


class Expected(NamedTuple):
    """torch's values, and the mask of each result; None in place of a mask says that the result is plain."""

    values: Any
    masks: list[Tensor | None]


#: Values, and the mask of each result.
Oracle = Callable[[Entry, Call, Sequence[Tensor], Sequence[Tensor]], tuple[Any, list[Tensor | None]]]


def expect(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor | None]) -> Expected:
    """The oracle of the entry's family; a plain tensor is fully specified."""
    whole = [
        torch.ones(leaf.shape, dtype=torch.bool) if mask is None else mask
        for leaf, mask in zip(leaves, masks, strict=True)
    ]
    oracle = oracle_of(entry.operation)
    assert oracle is not None, f"{entry.id}: nobody has told the laws what {entry.operation.name} means"
    if entry.dtype not in WIDER or entry.operation.family in EXACT:
        return Expected(*oracle(entry, call, leaves, whole))
    wide = [leaf.to(WIDER.get(leaf.dtype, leaf.dtype)) for leaf in leaves]
    return rounded(Expected(*oracle(entry, call, wide, whole)), entry, call)


#: What the oracles compute with on behalf of narrow dtypes …
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
#: … unless nothing is added up: torch's own bits are the ones that count.
EXACT = (
    *("elementwise", "views", "indexing", "joins", "conversion", "creation", "equality"),
    *("random", "sorting", "histograms", "embeddings"),
)


def rounded(expected: Expected, entry: Entry, call: Call) -> Expected:
    """The same in the dtypes that torch gives for the call."""
    args, kwargs = call.with_tensors(call.leaves(False))
    kinds = [part.dtype for part in parts_of(entry.function(*args, **kwargs))]
    parts = [part.to(kind) for part, kind in zip(parts_of(expected.values), kinds, strict=True)]
    if isinstance(expected.values, Tensor):
        return Expected(parts[0], expected.masks)
    kind = type(expected.values)
    return Expected(tuple(parts) if kind is tuple else kind(parts), expected.masks)


def oracle_of(operation: Operation) -> Oracle | None:
    """By the operation's name, else by its family."""
    return ORACLES_BY_NAME.get(operation.name) or ORACLES.get(operation.family)


def elementwise(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Expected:
    """Specified where every operand is, after broadcasting; torch works on those positions alone.

    That an infinite derivative or a NaN at another position is not there to be multiplied by zero is the point.
    """
    args, kwargs = call.with_tensors(leaves)
    dense = entry.function(*args, **kwargs)
    function, leaves, masks = entry.function, list(leaves), list(masks)
    if entry.operation.name == "prelu":
        function, leaves[1], masks[1] = prelu, *(along_channels(leaves[0], x) for x in (leaves[1], masks[1]))
    mask = functools.reduce(torch.logical_and, torch.broadcast_tensors(*masks))
    # an operand without dimensions stays one: it takes part in type promotion differently
    chosen = [leaf.expand(mask.shape)[mask] if leaf.ndim else leaf for leaf in leaves]
    if mask.ndim == 0 and not mask:
        return Expected(nothing(dense, leaves), [mask for _ in parts_of(dense)])
    args, kwargs = call.with_tensors(chosen)
    results = parts_of(function(*args, **kwargs))
    scattered = [torch.zeros(mask.shape, dtype=part.dtype).masked_scatter(mask, part) for part in results]
    values = scattered[0] if isinstance(dense, Tensor) else type(dense)(scattered)
    return Expected(values, [mask for _ in scattered])


def nothing(dense: Any, leaves: Sequence[Tensor]) -> Any:
    """A result without a specified entry: zeros, with zero gradients."""
    zero = sum(leaf.sum() * 0 for leaf in leaves if leaf.requires_grad)
    zeros = [torch.zeros_like(part) + (zero if part.requires_grad else 0) for part in parts_of(dense)]
    return zeros[0].to(dense.dtype) if isinstance(dense, Tensor) else type(dense)(zeros)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, weight * x)


def along_channels(x: Tensor, per_channel: Tensor) -> Tensor:
    """The weights belong to dimension 1 of the input."""
    if per_channel.numel() == 1:
        return per_channel.reshape(())
    return per_channel.reshape(-1, *[1] * (x.ndim - 2))


def movement(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Expected:
    """Numbers the entries from 1, moves the numbers as torch moves values, and looks up where each result came from.

    An entry that no operand lent (0) was made by the operation, and is specified.
    """
    args, kwargs = call.with_tensors(leaves)
    values = entry.reference(*args, **kwargs)
    numbered, known = [], [torch.ones(1, dtype=torch.bool)]
    start = 1
    for i, (leaf, mask) in enumerate(zip(leaves, masks, strict=True)):
        if i not in call.data or is_condition(entry, i):
            numbered.append(leaf.detach())
            continue
        numbers = torch.arange(start, start + leaf.numel(), dtype=torch.float64).reshape(leaf.shape)
        numbered.append(as_complex_if(numbers, leaf))
        known.append(mask.reshape(-1))
        start += leaf.numel()
    args, kwargs = call.with_tensors(numbered)
    where = WRITTEN_NUMBER.get(entry.name)
    if where is not None:
        args = tuple(0 if i == where and not isinstance(a, Tensor) else a for i, a in enumerate(args))
        kwargs = {key: 0 if key == "value" and value is not None else value for key, value in kwargs.items()}
    table = torch.cat(known)
    origins = [part.real if part.is_complex() else part for part in parts_of(entry.function(*args, **kwargs))]
    results = [table[origin.to(torch.int64)] for origin in origins]
    for i, mask in enumerate(masks):
        if i in call.data and is_condition(entry, i):
            results = [result & mask for result in results]
    return Expected(values, results)


#: Operations whose second tensor is a Boolean that decides which side an entry comes from.
CONDITIONAL = ("where", "masked_fill")
#: Operations that write a Python number, an entry of their own making, and which argument that is.
WRITTEN_NUMBER = {
    "masked_fill": 2, "where": 2, "scatter": 3, "index_fill": 3, "nn.functional.pad": 3, "constant_pad_nd": 2
}  # fmt: skip


def is_condition(entry: Entry, place: int) -> bool:
    return entry.name in CONDITIONAL and place == 1


def as_complex_if(numbers: Tensor, leaf: Tensor) -> Tensor:
    return torch.complex(numbers, torch.zeros_like(numbers)) if leaf.is_complex() else numbers


def complex_view(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Expected:
    """The two parts of a complex number share its mask; a number is specified where both parts are."""
    values = entry.function(leaves[0])
    (mask,) = masks
    return Expected(
        values, [mask[..., 0] & mask[..., 1] if values.is_complex() else torch.stack([mask, mask], -1)]
    )


def conversion(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Expected:
    """Every entry stays where it is."""
    args, kwargs = call.with_tensors(leaves)
    return Expected(entry.function(*args, **kwargs), [masks[0]])


def writing(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Expected:
    """What is written moves there; with ``accumulate`` or ``reduce`` it meets what else comes to the place."""
    if accumulates(call):
        return accumulation(entry, call, leaves, masks)
    return movement(entry, call, leaves, masks)


#: Families all of whose operations one rule explains.
ORACLES: dict[str, Oracle] = {
    "elementwise": elementwise,
    "views": movement,
    "conversion": conversion,
    "convolutions": convolution,
    "distances": distance,
    "normalization": normalization,
    "softmax": scan,
    "creation": creation,
    "equality": equality,
    "gating": gating,
    "random": random,
    "attention": attention,
    "pooling": pooling,
    "interpolation": interpolation,
    "losses": loss,
    "embeddings": embedding,
}

MOVES = """
    __getitem__ index_select where masked_fill gather take take_along_dim
    masked_select
    cat stack hstack vstack dstack column_stack block_diag meshgrid cartesian_prod combinations
    nn.functional.pad constant_pad_nd nn.functional.unfold
    index_copy index_fill masked_scatter select_scatter slice_scatter diagonal_scatter as_strided_scatter
"""
WRITES = "scatter index_put put"
REDUCES = """
    sum mean nansum nanmean prod var std var_mean std_mean any all count_nonzero
    amax amin aminmax argmax argmin max min norm linalg.vector_norm logsumexp hash_tensor
"""
CONTRACTS = """
    matmul mm bmm mv dot linear vdot linalg.vecdot inner outer kron tensordot einsum bilinear
    addmm addmv addr baddbmm addbmm
"""
ORACLES_BY_NAME: dict[str, Oracle] = {
    **dict.fromkeys(("view_as_real", "view_as_complex"), complex_view),
    **dict.fromkeys(MOVES.split(), movement),
    **dict.fromkeys(WRITES.split(), writing),
    **dict.fromkeys(ACCUMULATIONS, accumulation),
    **dict.fromkeys(("nonzero", "nonzero_static", "argwhere"), positions),
    "sum_to_size": sum_to_size,
    **dict.fromkeys(REDUCES.split(), reduction),
    **dict.fromkeys(CONTRACTS.split(), contraction),
    **LINEAR_ALGEBRA,
    **SCANS,
    **SORTING,
    **ORDER_STATISTICS,
}
