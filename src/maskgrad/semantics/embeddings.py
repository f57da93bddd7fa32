"""Embeddings: unspecified indices read nothing, are ignored in bags, and give the table no gradient.

The value of a masked index is never used, so it need not be a valid row. Tables and per-sample weights may
be masked, too; then an entry of a bag combines the specified entries of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from maskgrad.mode import TRACED, can_read, mode
from maskgrad.semantics.dimensions import specified_first
from maskgrad.semantics.entries import Entries, Operand, filled, intersection, mask_of, widened
from maskgrad.semantics.facts import record
from maskgrad.semantics.norms import vector_norm
from maskgrad.semantics.scattering import combine
from maskgrad.semantics.signatures import bound, plain_argument


def _parts(operand: Operand) -> tuple[Tensor, Tensor | None]:
    """Values, and the mask if there is one."""
    return operand if isinstance(operand, Entries) else (operand, None)


def embedding(
    input: Operand,
    weight: Operand,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Entries:
    """The row of each index; unspecified where the index is, and where the row's entries are."""
    indices, known = _parts(input)
    table, present = _parts(weight)
    if known is not None:
        indices = torch.where(known, indices, 0)
    if max_norm is not None:
        renormalise(weight, indices, known, max_norm, norm_type)
    if known is not None and (sparse or scale_grad_by_freq) and gets_gradient(table):
        values = _listed_rows(indices, known, table, padding_idx, scale_grad_by_freq, sparse)
    else:
        # The gradient of an unspecified result is exactly 0: row 0 receives it.
        values = _rows(indices, table, padding_idx, scale_grad_by_freq, sparse)
    mask = mask_of(input).unsqueeze(-1).expand(values.shape)
    if present is None:
        return Entries(values, mask)
    listed = F.embedding(indices, present)
    return Entries(values, listed if known is None else mask & listed)


def gets_gradient(table: Tensor) -> bool:
    """Return whether a gradient of the table may be taken; else no rows need be listed or counted for it."""
    return torch._C._are_functorch_transforms_active() or (table.requires_grad and torch.is_grad_enabled())


def _rows(
    indices: Tensor, table: Tensor, padding_idx: int | None, scale_grad_by_freq: bool, sparse: bool
) -> Tensor:
    """``F.embedding``. Under vmap torch concatenates the tables, and ignores the padding of all but the first."""
    if padding_idx is None or sparse or scale_grad_by_freq or mode() == "eager":
        return F.embedding(indices, table, padding_idx, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    if not -table.shape[0] <= padding_idx < table.shape[0]:
        F.embedding(indices, table, padding_idx)  # torch raises the errors
    values = F.embedding(indices, table)
    padded = (indices == padding_idx % table.shape[0]).unsqueeze(-1)
    return torch.where(padded, values.detach(), values)


def _listed_rows(
    indices: Tensor,
    known: Tensor,
    table: Tensor,
    padding_idx: int | None,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Tensor:
    """``F.embedding`` whose gradient lists, and counts, only the specified indices."""
    compiling = mode() in TRACED
    if sparse and not compiling and any(map(is_batchedtensor, (table, indices, known))):
        raise RuntimeError(
            "an embedding with sparse=True is not supported under torch.vmap: the number of specified indices "
            "differs from sample to sample; use sparse=False"
        )
    # PyTorch's transforms and forward-mode derivatives do not pass the operator
    if sparse and not scale_grad_by_freq and mode() != "transform":
        if padding_idx is not None:
            if not -table.shape[0] <= padding_idx < table.shape[0]:
                F.embedding(indices, table, padding_idx)  # torch raises the errors
            known = known & (indices != padding_idx % table.shape[0])
        return torch.ops.maskgrad.listed_rows(table, indices, known)  # type: ignore[no-any-return]
    place = known.reshape(-1).nonzero().squeeze(-1)
    listed = indices.reshape(-1)[place]
    if sparse or compiling or len(place):
        rows = F.embedding(listed, table, padding_idx, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    else:  # on a GPU PyTorch's gradient seems to fail for no index at all: docs/gpu.md
        rows = table[:0]
    zeros = rows.new_zeros(known.numel(), table.shape[-1])
    return zeros.index_copy(0, place, rows).reshape(*known.shape, table.shape[-1])


def _save_listed(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    table, indices, listed = inputs
    ctx.save_for_backward(indices, listed)
    ctx.shape = table.shape


def _gradient_of_listed(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    indices, listed = ctx.saved_tensors
    place = listed.reshape(-1).nonzero().squeeze(-1)
    rows, values = indices.reshape(-1)[place].long(), grad.reshape(-1, grad.shape[-1])[place]
    return torch.sparse_coo_tensor(rows[None], values, ctx.shape, check_invariants=False), None, None


# An operator: PyTorch's gradient reads the number of rows while traced; Dynamo cannot trace sparse tensors.
torch.library.define("maskgrad::listed_rows", "(Tensor table, Tensor indices, Tensor listed) -> Tensor")
torch.library.impl("maskgrad::listed_rows", "default", lambda table, indices, _: F.embedding(indices, table))
torch.library.register_fake(
    "maskgrad::listed_rows",
    lambda table, indices, _: table.new_empty(*indices.shape, table.shape[1]),
)
torch.library.register_autograd("maskgrad::listed_rows", _gradient_of_listed, setup_context=_save_listed)


@torch.no_grad()
def renormalise(
    weight: Operand, indices: Tensor, known: Tensor | None, max_norm: float, norm_type: float
) -> None:
    """Scale the rows that are read down to ``max_norm``, in place; all others are unchanged."""
    table, present = _parts(weight)
    table = table.detach()
    if not indices.numel():
        return
    read = indices.reshape(-1)
    if known is not None:
        # Masked indices repeat one that is read anyway; if there is none, the row is restored.
        stand_in = torch.where(known, indices, 0).amax().reshape(1)
        read = torch.where(known.reshape(-1), read, stand_in)
        saved = table.index_select(0, stand_in)
    if present is None:
        torch.embedding_renorm_(table, read.contiguous(), max_norm, norm_type)
    else:
        rows = Entries(table.index_select(0, read), present.index_select(0, read))
        length = vector_norm(rows, norm_type, 1, keepdim=True).values
        scaled = rows.values * torch.where(length > max_norm, max_norm / (length + 1e-7), 1)
        table.index_copy_(0, read, torch.where(rows.mask, scaled, rows.values))
    if known is not None:
        table.index_copy_(0, stand_in, torch.where(known.any(), table.index_select(0, stand_in), saved))


def split_offsets(indices: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Start of each bag, and end of the last one."""
    if isinstance(offsets, Entries):
        raise TypeError(
            "offsets must be a plain tensor: the start of each bag must be known. Use offsets.compressed()"
        )
    if indices.ndim == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length "
                f"sequences. However, found offsets of type {type(offsets)}"
            )
        return torch.arange(indices.shape[0] + 1, device=indices.device) * indices.shape[1]
    if indices.ndim != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {indices.ndim}")
    if offsets is None or offsets.ndim != 1:
        raise ValueError(f"offsets has to be a 1D Tensor{' but got None' if offsets is None else ''}")
    if include_last_offset:
        return offsets
    return torch.cat([offsets, offsets.new_full((1,), len(indices))])


class Bags(NamedTuple):
    """Specified indices by bag, and the others in a last bag, which is dropped afterwards.

    Attributes:
        indices: in order; the others, if kept, read row 0.
        starts: start of each bag; the last is that of the others.
        factors: the weight of each index, None if all are equal.
    """

    indices: Tensor
    starts: Tensor
    factors: Tensor | None


def known_bags(indices: Tensor, known: Tensor, starts: Tensor, factors: Tensor | None, alone: bool) -> Bags:
    """Delete the unspecified indices: ``alone`` from memory, else (static shapes) from all bags but the last."""
    moved = F.pad(known.cumsum(0), (1, 0))[starts].to(indices.dtype)
    if alone:
        return Bags(indices[known], moved, None if factors is None else factors[known])
    order = specified_first(known, 0)
    if factors is not None:
        factors = torch.where(known, factors, 0).gather(0, order)
    return Bags(indices.gather(0, order), moved, factors)


def pooled(
    bags: Bags, rows: Tensor, listed: Tensor, height: int, mode: str, padding_idx: int | None
) -> Entries:
    """Sum, mean or maximum of each bag over the entries of its ``rows`` that are ``listed``."""
    padding_idx = padding_idx if padding_idx is None or padding_idx >= 0 else height + padding_idx
    # of each index the number of bags that begin up to it, less one
    begins = torch.zeros(len(bags.indices) + 1, dtype=torch.int64, device=rows.device)
    begins = begins.scatter_add(0, bags.starts.long(), torch.ones_like(bags.starts, dtype=torch.int64))
    owner = begins.cumsum(0)[:-1] - 1
    # Padding indices are ignored, but a bag of only padding has the result 0 in torch.
    taking_part = listed if padding_idx is None else listed & (bags.indices != padding_idx).unsqueeze(-1)
    blank = rows.detach().new_zeros(len(bags.starts), rows.shape[1])
    empty, owners = Entries(blank, blank.bool()), owner.unsqueeze(-1).expand(rows.shape)
    found = combine(empty, 0, owners, Entries(torch.zeros_like(rows), listed), "sum", True)
    rows = widened(torch.where(taking_part, rows, 0))
    if bags.factors is not None:
        rows = rows * torch.where(taking_part, bags.factors.unsqueeze(-1), 0)
    kinds = {"sum": "sum", "mean": "mean", "max": "amax"}
    values = combine(empty, 0, owners, Entries(rows, taking_part), kinds[mode], True)
    return Entries(filled(values)[:-1], found.mask[:-1])


def embedding_bag(
    input: Operand,
    weight: Operand,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Operand | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Entries:
    """Sum, mean or maximum of the rows of the specified indices of each bag; a bag without any is unspecified."""
    (indices, _), (table, present) = _parts(input), _parts(weight)
    factors = None if per_sample_weights is None else _parts(per_sample_weights)[0]
    check_bags(indices, table, factors, mode)
    starts = split_offsets(indices, offsets, include_last_offset)
    mask = intersection((input, per_sample_weights))
    known = torch.ones_like(indices, dtype=torch.bool) if mask is None else mask
    indices, known = torch.where(known, indices, 0).reshape(-1), known.reshape(-1)
    if max_norm is not None:
        renormalise(weight, indices, known, max_norm, norm_type)
    # If the length of the result may depend on the mask, unspecified indices are simply dropped.
    counted = gets_gradient(table)
    alone = (counted and scale_grad_by_freq) or can_read(known)
    bags = known_bags(indices, known, starts, None if factors is None else factors.reshape(-1), alone)
    options = {"scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    if present is not None or (counted and sparse and not alone):
        first = torch.arange(len(bags.indices), device=table.device) < bags.starts[-1]
        rows = embedding(Entries(bags.indices, first), weight, padding_idx, **options)
        return pooled(bags, *rows, table.shape[0], mode, padding_idx)
    values = F.embedding_bag(
        bags.indices,
        table,
        bags.starts,
        mode=mode,
        per_sample_weights=bags.factors,
        padding_idx=padding_idx,
        **options,
    )[:-1]
    return Entries(values, (bags.starts.diff() > 0).unsqueeze(-1).expand(values.shape))


def check_bags(indices: Tensor, table: Tensor, factors: Tensor | None, mode: str) -> None:
    """Check PyTorch's conditions on arguments that are split before PyTorch sees them."""
    if factors is not None and indices.shape != factors.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({factors.shape}) is not None, "
            f"then it must have the same shape as the input ({indices.shape})"
        )
    if table.ndim != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {table.ndim}")
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if factors is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
            f"(got mode='{mode}')."
        )


def one_hot(input: Operand, num_classes: Any = -1) -> Operand:
    """A vector with a single 1 for each index; fully unspecified where the index is."""
    values = F.one_hot(filled(input), plain_argument(num_classes))
    if not isinstance(input, Entries):
        return values
    return Entries(values, input.mask.unsqueeze(-1).expand(values.shape))


def _embedding(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``F.embedding(input, weight)`` and ``torch.embedding(weight, indices)``, where -1 means "no padding"."""
    if function is F.embedding:
        return embedding(*args, **kwargs)
    arguments = bound("weight indices padding_idx scale_grad_by_freq sparse", args, kwargs)
    padding_idx = arguments.pop("padding_idx", -1)
    return embedding(
        arguments.pop("indices"), padding_idx=None if padding_idx < 0 else padding_idx, **arguments
    )


ADDED = "added up in the rows of the specified indices; a sparse one lists no others"
ENTRY = "specified where the index is and the entry of its row is", ADDED
BAG = "specified where the bag has a specified index and its row a specified entry", ADDED
INDEX = "specified where the index is", "none"
OPERATIONS = tuple(
    record(f"nn.functional.{name}", "embeddings", rule, *words, functions=functions, padded="mask")
    for name, rule, words, functions in (
        ("embedding", _embedding, ENTRY, (F.embedding, torch.embedding)),
        ("embedding_bag", embedding_bag, BAG, (F.embedding_bag,)),
        ("one_hot", one_hot, INDEX, (F.one_hot,)),
    )
)
