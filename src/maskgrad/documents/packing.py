"""Packed rows to one sequence per document, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.documents.numbering import Ways, is_eager, numbered
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries
from maskgrad.mode import TRACED, can_read, mode
from maskgrad.patterns import JaggedPattern
from maskgrad.patterns.jagged import jagged_pattern
from maskgrad.semantics.stored.entries import SIGNED

__all__ = ["pack_documents", "unpack_documents"]


def unpack_documents(
    x: Tensor | MaskedTensor,
    segment_ids: Tensor | MaskedTensor | None = None,
    position_ids: Tensor | MaskedTensor | None = None,
    cu_seqlens: Tensor | None = None,
    mask: Tensor | MaskedTensor | None = None,
    *,
    padding_id: int | None = None,
    sizes: tuple[int, int] | None = None,
) -> MaskedTensor:
    r"""Return the documents of packed rows as sequences: :math:`z_{d,i} = x_{b,t}`, the i-th token of document d.

    Give one of ``segment_ids``, ``position_ids`` and ``cu_seqlens``, or a mask alone, whose entries make one document
    of each row. ``segment_ids=torch.where(mask, 0, -1)`` gives the same.

    Args:
        x: (B, T, \*features), any dtype, whose rows hold documents one after the other; (N, \*features) with
            ``cu_seqlens``. A MaskedTensor keeps its own mask, too.
        segment_ids: integers (B, T), equal within a document and different from its neighbours' in the row; negative:
            padding. In a MaskedTensor, what is unspecified is padding.
        position_ids: integers (B, T), from 0 in each document, which starts where they start again. Padding is negative
            or not in ``mask``; zeros that pad a row are documents of one token.
        cu_seqlens: integers (D + 1,), from 0 to N; documents may be empty.
        mask: Boolean (B, T) or (N,), or integers 0 and 1, such as ``attention_mask``: what is False belongs to no
            document. Gaps are closed.
        padding_id: another id of padding in ``segment_ids``: 0 where documents are numbered from 1.
        sizes: (documents, tokens), where they are known: nothing is read from the device, and ``torch.compile`` makes
            one graph. T of the result is then that of ``x``.

    Returns:
        MaskedTensor (D, T, \*features) of layout ``torch.jagged``, in order of rows, T the longest document. With a
        Boolean mask if entries of a MaskedTensor within documents are unspecified.
        Gradient: that of a selection, exactly 0 in the padding; differentiable twice.

    Raises:
        TypeError: ids are not integers, or ``x`` is no tensor.
        ValueError: another shape or device than the rows; two ways at once, or none; a segment returns later in its
            row, or a position neither continues nor starts again (the message has row and position; in graphs an
            assertion); ``sizes`` differ.

    Dense equivalent: ``[x[b][ids[b] == d] for b in range(B) for d in ids[b].unique()]``.

    Example:
        >>> x = torch.tensor([[1., 2., 3., 4.], [5., 6., 7., 0.]])
        >>> ids = torch.tensor([[0, 0, 0, 1], [0, 1, 1, -1]])
        >>> mg.unpack_documents(x, segment_ids=ids).mean(1)
        masked([2.0000, 4.0000, 5.0000, 6.5000])

    Source: https://huggingface.co/docs/trl/en/reducing_memory_usage (packing).
    """
    line = "mg.unpack_documents(x, {})"
    depth = 1 if cu_seqlens is not None else 2
    is_tensor = isinstance(x, (Tensor, MaskedTensor))
    if not is_tensor or x.ndim < depth:
        found = f"shape {tuple(x.shape)}" if is_tensor else type(x).__name__
        instead = "x[None], segment_ids[None]" if is_tensor else "torch.as_tensor(x), segment_ids"
        raise TypeError(
            "mg.unpack_documents: x must be a tensor (B, T, *features), or (N, *features) with cu_seqlens, found "
            f"{found}; write mg.unpack_documents({instead})"
        )
    ways = Ways(segment_ids, position_ids, cu_seqlens, mask, padding_id)
    number = numbered(ways, x.shape[:depth], x.device, line)
    documents, tokens = sizes or (None, None)
    if sizes is not None:
        _check_sizes(number, sizes, line)
    elif cu_seqlens is not None:
        documents, tokens = cu_seqlens.shape[0] - 1, x.shape[0] if mask is None else None
    rows, pattern = _sequences(number, documents, tokens, longest=None if sizes is None else number.shape[-1])
    values, known = x._dense() if isinstance(x, MaskedTensor) else (x, None)
    values = _selected(values.flatten(0, depth - 1), rows)
    if known is not None:
        known = _selected(known.flatten(0, depth - 1), rows)
    if known is None or (is_eager() and bool(known.all())):
        return MaskedTensor(values, pattern)
    return of_entries(*(MaskedTensor(part, pattern)._dense()[0] for part in (values, known)))


def _selected(rows: Tensor, index: Tensor) -> Tensor:
    # index_select does not support these dtypes
    return rows[index] if rows.dtype in SIGNED else rows.index_select(0, index)


def _sequences(
    number: Tensor, documents: int | None, tokens: int | None, longest: int | None
) -> tuple[Tensor, JaggedPattern]:
    """The place of each token among all positions, and the pattern of the documents; None: read from values."""
    flat = number.flatten()
    inside = flat >= 0
    rows = inside.nonzero() if tokens is None else torch.nonzero_static(inside, size=tokens)
    rows = rows[:, 0]
    if documents is None:
        documents = int(flat.max()) + 1 if flat.numel() else 0
    bounds = torch.arange(documents + 1, device=flat.device)
    offsets = torch.searchsorted(flat.index_select(0, rows.clamp(min=0)), bounds)
    if longest is None:
        longest = number.shape[-1]
        if is_eager():
            longest = int(offsets.diff().max()) if documents else 0
    return rows, jagged_pattern(offsets, rows.shape[0], (documents, longest))


def _check_sizes(number: Tensor, sizes: tuple[int, int], line: str) -> None:
    tokens = (number >= 0).sum()
    documents = number.max() + 1 if number.numel() else tokens
    if number.ndim == 1:  # of cu_seqlens, where documents may be empty
        documents = torch.full_like(tokens, sizes[0])
    if mode() in TRACED:
        torch._assert_async(
            (tokens == sizes[1]) & (documents == sizes[0]),
            f"{line.partition('(')[0]}: other sizes than given",
        )
    elif can_read(number) and (int(documents), int(tokens)) != tuple(sizes):
        found = f"segment_ids=segment_ids, sizes=({int(documents)}, {int(tokens)})"
        raise ValueError(
            f"{line.partition('(')[0]}: there are {int(documents)} documents of {int(tokens)} tokens, and sizes is "
            f"{tuple(sizes)}; write {line.format(found)}"
        )


def pack_documents(
    z: MaskedTensor,
    segment_ids: Tensor | MaskedTensor | None = None,
    position_ids: Tensor | MaskedTensor | None = None,
    cu_seqlens: Tensor | None = None,
    mask: Tensor | MaskedTensor | None = None,
    *,
    padding_id: int | None = None,
) -> MaskedTensor:
    r"""Put documents back into packed rows, the inverse of :func:`unpack_documents`: :math:`x_{b,t} = z_{d,i}`.

    Args:
        z: MaskedTensor (D, T, \*features), one sequence per document, of any layout: what
            :func:`unpack_documents` returned, or was computed from it.
        segment_ids: as for :func:`unpack_documents`, and so are ``position_ids``, ``cu_seqlens``, ``mask``.
        position_ids: integers (B, T).
        cu_seqlens: integers (D + 1,).
        mask: Boolean (B, T) or (N,).
        padding_id: an id of padding in ``segment_ids``.

    Returns:
        MaskedTensor (B, T, \*features), or (N, \*features) with ``cu_seqlens``; unspecified where no document is, and
        where ``z`` is. Gradient: that of a selection; differentiable twice. In graphs sizes are those of the arguments.

    Raises:
        TypeError: ``z`` is not a MaskedTensor.
        ValueError: as :func:`unpack_documents`; ``z`` has another number of sequences, or a sequence of another length
            than the document (the message names the first one).

    Dense equivalent: ``x = torch.zeros(B, T); x[ids >= 0] = torch.cat(sequences)``.

    Example:
        >>> ids = torch.tensor([[0, 0, 1, -1]])
        >>> z = mg.unpack_documents(torch.tensor([[1., 3., 5., 0.]]), segment_ids=ids)
        >>> mg.pack_documents(z - z.mean(1, keepdim=True), segment_ids=ids)
        masked([[-1.,  1.,  0., --]])

    Source: https://huggingface.co/docs/trl/en/reducing_memory_usage (packing).
    """
    line = "mg.pack_documents(z, {})"
    if not isinstance(z, MaskedTensor) or z.ndim < 2:
        raise TypeError(
            "mg.pack_documents: z must be a MaskedTensor (D, T, *features), one sequence per document, found "
            f"{type(z).__name__}; for rows of documents write mg.pack_documents(mg.from_offsets(z, cu_seqlens), "
            "cu_seqlens=cu_seqlens)"
        )
    pattern = z._pattern if isinstance(z._pattern, JaggedPattern) and z._pattern.at == (0, 1) else None
    of_rows = cu_seqlens is not None and mask is None
    frame = z._values.shape[:1] if of_rows and pattern is not None else None
    number = numbered(Ways(segment_ids, position_ids, cu_seqlens, mask, padding_id), frame, z.device, line)
    documents = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    tokens = number.shape[0] if of_rows else None
    if mode() in TRACED and pattern is not None:
        documents, tokens = z.shape[0], z._values.shape[0]
        _check_sizes(number, (documents, tokens), line)
    rows, own = _sequences(number, documents, tokens, longest=None)
    if is_eager():
        _check_documents(z, pattern, own)
    elif mode() in TRACED and pattern is not None:
        torch._assert_async(
            (own.offsets == pattern.offsets).all(), "sequences and documents differ in length"
        )
    if pattern is not None:
        values, known = z._values, torch.ones_like(rows, dtype=torch.bool)
    else:
        values, known = z._dense()
        index = own.sequences() * z.shape[1] + own.positions()
        values, known = (_selected(part.flatten(0, 1), index) for part in (values, known))
    features = (1,) * (values.ndim - known.ndim)
    x, known = (_spread(part, rows, number.shape) for part in (values, known))
    return of_entries(x, known.reshape(*known.shape, *features).expand(x.shape))


def _spread(rows: Tensor, index: Tensor, frame: torch.Size) -> Tensor:
    """Rows at their places in ``frame``, zeros elsewhere."""
    if rows.dtype in SIGNED:  # which cannot be written at indices
        return _spread(rows.view(SIGNED[rows.dtype]), index, frame).view(rows.dtype)
    zeros = rows.new_zeros(frame.numel(), *rows.shape[1:]).index_copy(0, index, rows)
    return zeros.reshape(*frame, *rows.shape[1:])


def _check_documents(z: MaskedTensor, pattern: JaggedPattern | None, own: JaggedPattern) -> None:
    """Raise an error if sequences and documents differ in number or length."""
    remedy = (
        "write mg.pack_documents(mg.unpack_documents(x, segment_ids=segment_ids), segment_ids=segment_ids)"
    )
    lengths = own.lengths()
    if z.shape[0] != len(lengths):
        raise ValueError(
            f"mg.pack_documents: z has {z.shape[0]} sequences, and the rows hold {len(lengths)} documents; {remedy}"
        )
    if pattern is not None:
        given, wrong = pattern.lengths(), pattern.lengths() != lengths
    else:  # a mask may have gaps
        places = torch.arange(1, z.shape[1] + 1, device=z.device)
        given = (z._dense()[1].flatten(2).any(2) if z.ndim > 2 else z._dense()[1]).mul(places)
        given = given.amax(1) if z.shape[1] else torch.zeros_like(lengths)
        wrong = (given > lengths) | (lengths > z.shape[1])
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise ValueError(
            f"mg.pack_documents: document {at} has {int(lengths[at])} tokens, and its sequence in z has "
            f"{int(given[at])}; {remedy}"
        )
