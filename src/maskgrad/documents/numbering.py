"""The document of each position of packed rows, read from segment ids, positions, offsets or a mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.creation import plain_mask
from maskgrad.mode import TRACED, mode
from maskgrad.patterns.checks import check_offsets
from maskgrad.patterns.mask_arguments import check_mask

__all__ = ["Ways", "is_eager", "numbered", "starts"]


class Ways(NamedTuple):
    """The arguments that say where documents are: one of the first three, a mask, or one of them and a mask."""

    segment_ids: Any = None
    position_ids: Any = None
    cu_seqlens: Any = None
    mask: Any = None
    padding_id: int | None = None


def is_eager() -> bool:
    """Return whether sizes may be read from values, on any device."""
    return mode() == "eager"


def numbered(ways: Ways, frame: torch.Size | None, device: torch.device, line: str) -> Tensor:
    """Number the documents of a batch from 0, in order of rows: int64 in the shape of the batch, -1 for none.

    Args:
        ways: where documents are.
        frame: (B, T), or (N,) for ``cu_seqlens``; None: that of the argument itself.
        device: the device of the data.
        line: the call in messages, such as ``mg.unpack_documents(x, {})``.

    Raises:
        TypeError, ValueError: as :func:`maskgrad.unpack_documents`. In graphs the checks of values are part of the
            graph.
    """
    function = line.partition("(")[0]
    name, ids = _given(ways, line)
    if isinstance(ids, MaskedTensor):
        ids = ids.filled(-1)
    if not isinstance(ids, Tensor) or (
        name != "mask" and (ids.is_floating_point() or ids.dtype == torch.bool)
    ):
        is_tensor = isinstance(ids, Tensor)
        found = ids.dtype if is_tensor else type(ids).__name__
        is_mask = is_tensor and ids.dtype == torch.bool
        other = f"mask={name}" if is_mask else f"{name}=torch.as_tensor({name}).long()"
        raise TypeError(
            f"{function}: {name} must be a tensor of integers, found {found}; write {line.format(other)}"
        )
    if ids.device != device:
        moved = f"{name}={name}.to({str(device)!r})"
        raise ValueError(
            f"{function}: {name} must be on the device of the data, {device}, found {ids.device}; write "
            f"{line.format(moved)}"
        )
    if name == "cu_seqlens":
        return _of_offsets(ids, ways, frame, line)
    if ids.ndim != 2 or (frame is not None and ids.shape != frame):
        wanted = "(B, T)" if frame is None else f"(B, T) = {tuple(frame)}"
        fitted = f"[:{frame[0]}, :{frame[1]}]" if frame is not None and ids.ndim == 2 else "[None]"
        raise ValueError(
            f"{function}: {name} must have the shape of the rows, {wanted}, found {tuple(ids.shape)}; write "
            f"{line.format(f'{name}={name}{fitted}')}"
        )
    valid = torch.ones_like(ids, dtype=torch.bool) if name == "mask" else ids >= 0
    if ways.padding_id is not None:
        valid &= ids != ways.padding_id
    if ways.mask is not None:
        valid &= check_mask(plain_mask(ways.mask, valid), ids.shape, device)
    place = torch.arange(ids.shape[1], device=device)
    if name == "segment_ids":
        start, _ = starts(ids, valid)
        _check_segments(ids, start, line)
    elif name == "position_ids":  # a document is known by the place where it began
        begin = place - ids
        start, before = starts(begin, valid)
        _check_positions(ids, begin, start & (before >= begin) & (before >= 0), valid, line)
    else:
        start, _ = starts(torch.zeros_like(ids, dtype=torch.int64), valid)
    number = start.flatten().cumsum(0).sub(1).reshape(ids.shape)
    return torch.where(valid, number, -1)


def _given(ways: Ways, line: str) -> tuple[str, Any]:
    """The one way that is given, and its name."""
    function = line.partition("(")[0]
    given = [name for name in Ways._fields[:3] if getattr(ways, name) is not None]
    if len(given) > 1:
        raise ValueError(
            f"{function}: documents are given in {len(given)} ways, {' and '.join(given)}; write "
            f"{line.format(f'{given[0]}={given[0]}')}"
        )
    if not given and ways.mask is None:
        raise ValueError(
            f"{function}: nothing says where documents are; write {line.format('segment_ids=segment_ids')}"
        )
    name = given[0] if given else "mask"
    if ways.padding_id is not None and name != "segment_ids":
        raise ValueError(
            f"{function}: padding_id is an id among segment_ids, found {name}; write {line.format(f'{name}={name}')}"
        )
    return name, getattr(ways, name)


def starts(key: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Where documents start, and the last valid position before each position, -1 in front.

    Positions of one document have the same key; there may be padding between them.
    """
    place = torch.arange(key.shape[1], device=key.device)
    last = torch.where(valid, place, -1).cummax(1).values if key.shape[1] else key
    before = torch.nn.functional.pad(last, (1, 0), value=-1)[:, :-1]
    same = (before >= 0) & (key.gather(1, before.clamp(min=0)) == key)
    return valid & ~same, before


def _check_segments(ids: Tensor, start: Tensor, line: str) -> None:
    """Raise an error if an id starts two documents of a row."""
    if is_eager():
        rows, at = start.nonzero().T
        keys = ids[rows, at]
        if not bool(((rows[1:] == rows[:-1]) & (keys[1:] <= keys[:-1])).any()):
            return
    place = torch.arange(ids.shape[1], device=ids.device)
    keys, order = torch.where(start, ids.long(), -1 - place).sort(dim=1, stable=True)
    returned = keys[:, 1:] == keys[:, :-1]
    if _is_wrong(returned, f"{line.partition('(')[0]}: a segment returns later in its row"):
        row, second = returned.nonzero()[0].tolist()
        place_found = int(order[row, second + 1])
        raise ValueError(
            f"{line.partition('(')[0]}: segment {int(ids[row, place_found])} returns at position {place_found} of row "
            f"{row}, after another one; number its parts differently. If each part is a document, write "
            + line.format("segment_ids=torch.where(segment_ids < 0, -1, segment_ids.diff(dim=1, "
            "prepend=segment_ids[:, :1]).ne(0).cumsum(1))")
        )  # fmt: skip


def _check_positions(ids: Tensor, begin: Tensor, overlaps: Tensor, valid: Tensor, line: str) -> None:
    """Raise an error for positions that neither continue nor start again.

    ``begin`` is where each document began if positions count from there; there, whatever the mask, the position is 0.
    Only the first document of a row may have begun in an earlier row.
    """
    inside = valid & (begin >= 0)
    wrong = overlaps
    if ids.shape[1]:
        wrong = wrong | (inside & (ids.gather(1, begin.clamp(0, ids.shape[1] - 1).long()) != 0))
    if _is_wrong(wrong, f"{line.partition('(')[0]}: positions neither continue nor start again"):
        row, at = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{line.partition('(')[0]}: position {int(ids[row, at])} at {at} of row {row} neither continues the "
            "document before it nor starts one, as positions count from 0 without gaps, where the mask is False, too. "
            f"If only zeros start documents, write {line.format('segment_ids=(position_ids == 0).cumsum(1)')}"
        )


def _is_wrong(wrong: Tensor, message: str) -> bool:
    """Return whether any is wrong; in a graph an assertion."""
    if mode() in TRACED:
        torch._assert_async(~wrong.any(), message)
        return False
    return is_eager() and bool(wrong.any())


def _of_offsets(offsets: Tensor, ways: Ways, frame: torch.Size | None, line: str) -> Tensor:
    """The document of each row of (N, *features), of which some may be empty."""
    function = line.partition("(")[0]
    if frame is None:
        frame = ways.mask.shape[:1] if ways.mask is not None else torch.Size([int(offsets[-1])])
    if is_eager():
        try:
            check_offsets(offsets, frame[0])
        except ValueError as error:
            flat = line.replace("(x,", "(x.flatten(0, 1),").format("cu_seqlens=cu_seqlens")
            raise ValueError(
                f"{function}: {str(error).replace('offsets', 'cu_seqlens', 1)}; for x (1, N, *features) write {flat}"
            ) from None
    number = torch.bucketize(torch.arange(frame[0], device=offsets.device), offsets[1:], right=True)
    if ways.mask is None:
        return number
    return torch.where(check_mask(plain_mask(ways.mask, number), frame, offsets.device), number, -1)
