r"""Attention over packed rows, a run of sequences of one length at a time, by PyTorch's fused attention.

.. math:: y_i = \sum_{j \in J(i)} e^{s_{ij} - \ell_i} v_j

Rows (n L, H, E) of n consecutive sequences of one length are, as a view, the (n, H, L, E) that PyTorch's FlashAttention
for CPUs reads in place; ``_scaled_dot_product_flash_attention_for_cpu`` computes all heads of a run, on PyTorch's
threads. Its results are copied to their final place at once, so that the next run reuses the same memory, which is in
the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from maskgrad.kernels import attention as family
from maskgrad.kernels.attention.frames import allowed_by
from maskgrad.kernels.cpu.memory import empty

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Run(NamedTuple):
    """``number`` consecutive sequences starting at ``first``, each of ``length`` queries and ``keys`` keys."""

    first: int
    number: int
    length: int
    keys: int


def _runs(query_offsets: Tensor, key_offsets: Tensor) -> list[Run]:
    lengths = _lengths(query_offsets)
    both = zip(lengths, lengths if key_offsets is query_offsets else _lengths(key_offsets), strict=True)
    runs, first = [], 0
    for (length, keys), group in itertools.groupby(both):
        number = len(list(group))
        runs.append(Run(first, number, length, keys))
        first += number
    return runs


def _lengths(offsets: Tensor) -> list[int]:
    return [stop - start for start, stop in itertools.pairwise(offsets.tolist())]


def _frames(rows: Tensor, runs: list[Run], of_keys: bool = False) -> Sequence[Tensor]:
    """Views (n, H, L, …) of the rows (N, H, …) of each run, made at once: a call costs more than a short sequence."""
    lengths = [run.keys if of_keys else run.length for run in runs]
    whole = rows.unsqueeze(0).transpose(1, 2)
    frames = whole.split_with_sizes(
        [run.number * length for run, length in zip(runs, lengths, strict=True)], 2
    )
    return [
        frame if run.number == 1 else frame.unflatten(2, (run.number, length)).squeeze(0).transpose(0, 1)
        for frame, run, length in zip(frames, runs, lengths, strict=True)
    ]


def _rows(frame: Tensor) -> Tensor:
    """The rows (N, H, …) of the only run: a view, as the fused kernels write rows."""
    return frame.transpose(1, 2).flatten(0, 1).contiguous()


class _Mask(NamedTuple):
    """The mask added to a run's scores, and its queries that have keys (None: all)."""

    added: Tensor | None
    served: Tensor | None

    def blank(self, frame: Tensor) -> Tensor:
        """Zeros in the rows (n, H, L, E) of queries without keys."""
        return frame if self.served is None else torch.where(self.served, frame, 0)


class _Masks:
    """The parts of an attention mask for runs."""

    def __init__(self, attn_mask: Tensor | None, dtype: torch.dtype) -> None:
        self._mask = None if attn_mask is None else attn_mask.detach()[(None,) * (4 - attn_mask.ndim)]
        self._dtype = dtype

    def __call__(self, run: Run) -> _Mask:
        """Return the mask to add: 0 or -inf for a Boolean mask; a query without keys attends to all of them."""
        if self._mask is None:
            return _Mask(None, None)
        part = self._mask
        for dim, start, size in ((0, run.first, run.number), (2, 0, run.length), (3, 0, run.keys)):
            if part.shape[dim] > 1:
                part = part.narrow(dim, start, size)
        allowed = allowed_by(part)
        if part is allowed:
            added = torch.zeros((), dtype=self._dtype).where(allowed, -torch.inf)
        else:
            added = part.to(self._dtype).contiguous()
        served = allowed.any(-1, keepdim=True)
        if served.all():
            return _Mask(added, None)
        return _Mask(torch.where(served, added, 0), served)


def _readable(rows: Tensor) -> Tensor:
    """Return a copy unless the entries of a head are consecutive, as the fused kernels require."""
    rows = rows.detach()
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def ragged_attention(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, longest_query: int,
    longest_key: int, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    frame = (query_offsets, key_offsets, longest_query, longest_key, attn_mask, is_causal, scale)
    if not query.numel() or not family.fits_fused(query, key, value, *frame):
        return family.ragged_attention.reference(query, key, value, *frame)
    mask_of = _Masks(attn_mask, query.dtype)
    runs = _runs(query_offsets, key_offsets)
    out, sums = empty(query.shape, query.dtype), empty(query.shape[:2], family.wide(query.dtype))
    by_query = [_frames(_readable(x), runs) for x in (query, out, sums.unsqueeze(-1))]
    by_key = [_frames(_readable(x), runs, of_keys=True) for x in (key, value)]
    for run, q, y, total, k, v in zip(runs, *by_query, *by_key, strict=True):
        if not (run.length and run.keys):
            y.zero_()
            total.zero_()
            continue
        mask = mask_of(run)
        found = _FLASH(mask.blank(q), k, v, 0.0, is_causal, attn_mask=mask.added, scale=scale)
        if len(runs) == 1:
            return _rows(mask.blank(found[0])), _rows(found[1])
        y.copy_(mask.blank(found[0]))
        total.copy_(found[1].unsqueeze(-1))
    return out, sums


def ragged_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor,
    query_offsets: Tensor, key_offsets: Tensor, longest_query: int, longest_key: int,
    attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    frame = (query_offsets, key_offsets, longest_query, longest_key, attn_mask, is_causal, scale)
    if not query.numel() or not key.numel() or not family.fits_fused(query, key, value, *frame):
        return family.ragged_attention_backward.reference(grad, query, key, value, output, logsumexp, *frame)
    mask_of = _Masks(attn_mask, query.dtype)
    runs = _runs(query_offsets, key_offsets)
    results = empty(query.shape, query.dtype), empty(key.shape, key.dtype), empty(key.shape, key.dtype)
    rows = (grad, query, output, logsumexp.unsqueeze(-1), results[0])
    by_query = [_frames(_readable(x), runs) for x in rows]
    by_key = [_frames(_readable(x), runs, of_keys=True) for x in (key, value, *results[1:])]
    for run, g, q, y, total, of_q, k, v, of_k, of_v in zip(runs, *by_query, *by_key, strict=True):
        if not (run.length and run.keys):
            for part in (of_q, of_k, of_v):
                part.zero_()
            continue
        mask = mask_of(run)
        found = _FLASH_BACKWARD(
            mask.blank(g), mask.blank(q), k, v, y, total.squeeze(-1), 0.0, is_causal,
            attn_mask=mask.added, scale=scale,
        )  # fmt: skip
        if len(runs) == 1:
            return _rows(mask.blank(found[0])), _rows(found[1]), _rows(found[2])
        of_q.copy_(mask.blank(found[0]))
        of_k.copy_(found[1])
        of_v.copy_(found[2])
    return results
