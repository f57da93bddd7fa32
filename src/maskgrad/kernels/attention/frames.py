"""Packed rows in a padded frame, and which queries and keys take part there.

Shapes: N rows, B sequences, H heads, L the longest query sequence, S the longest key sequence. Row n of sequence b has
the place ``b * L + (n - offsets[b])`` in a frame (B, H, L, E).
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.segments import segment_index


def places_in_frame(offsets: Tensor, longest: int, number: int) -> Tensor:
    """Index of each of ``number`` rows (N,) in a frame of ``longest`` rows per sequence."""
    sequence = segment_index(offsets, None, number)
    position = torch.arange(number, device=offsets.device) - offsets.index_select(0, sequence)
    return sequence * longest + position


def framed(rows: Tensor, places: Tensor, sequences: int, longest: int) -> Tensor:
    """Rows (N, H, E) in a frame (B, H, longest, E), with zeros elsewhere."""
    shape = rows.shape[1:]
    frame = rows.new_zeros((sequences * longest, *shape)).index_copy(0, places, rows)
    return frame.view(sequences, longest, *shape).transpose(1, 2)


def unframed(frame: Tensor, places: Tensor) -> Tensor:
    """Rows (N, H, E) of a frame (B, H, L, E)."""
    return frame.transpose(1, 2).flatten(0, 1).index_select(0, places)


def allowed_by(attn_mask: Tensor) -> Tensor:
    """Return which keys an attention mask allows, as a Boolean mask."""
    return attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf


def meeting(
    key_offsets: Tensor, longest_query: int, longest_key: int, attn_mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Return which pairs of query and key take part, of those that exist (B, 1 or H, 1 or L, S)."""
    position = torch.arange(longest_key, device=key_offsets.device)
    taking_part = (position < key_offsets.diff()[:, None])[:, None, None, :]
    if is_causal:
        order = torch.arange(longest_query, device=key_offsets.device)[:, None] >= position
        taking_part = taking_part & order
    return taking_part if attn_mask is None else taking_part & allowed_by(attn_mask)


def served_in_frame(key_offsets: Tensor, longest_key: int, attn_mask: Tensor | None) -> Tensor:
    """Return which queries have a key (B, 1 or H, 1 or L); in causal order position 0, seen by all, decides.

    The first key that a mask allows decides, so no tensor larger than the mask is made.
    """
    lengths = key_offsets.diff()[:, None, None]
    if attn_mask is None:
        return lengths > 0
    allowed = allowed_by(attn_mask)
    allowed = allowed[(None,) * (4 - allowed.ndim)]
    position = torch.arange(longest_key, device=key_offsets.device)
    if not longest_key:
        return lengths > 0
    return torch.where(allowed, position, longest_key).amin(-1) < lengths
