"""The output of Hugging Face tokenizers as jagged batches, without importing their packages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor.sequences import check_layout
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.jagged import jagged_pattern

__all__ = ["from_tokenizer"]

FUNCTION = "mg.interop.from_tokenizer"

#: Fields with one entry per token.
BY_TOKEN = ("input_ids", "token_type_ids", "special_tokens_mask", "offset_mapping", "position_ids")


def from_tokenizer(
    encoding: Mapping[str, Any], *, sequences: Collection[str] = (), layout: torch.layout = torch.jagged
) -> dict[str, Any]:
    """Convert a batch of tokenized texts to a jagged one, without its padding.

    Args:
        encoding: ``BatchEncoding`` of a tokenizer called with a list of texts, or any mapping with ``input_ids`` (B
            lists of integers, or B × T tensor or array) and ``attention_mask`` of the same form, 1 = token. The padding
            may be on either side. Lists without ``attention_mask`` have no padding.
        sequences: further fields with one entry per token, such as ``labels``; known are ``input_ids``,
            ``token_type_ids``, ``special_tokens_mask``, ``offset_mapping`` and ``position_ids``.
        layout: ``torch.jagged``, or ``torch.strided`` for padding after each text under a Boolean mask.

    Returns:
        Dictionary with a MaskedTensor ``(B, T, *features)`` for each field with one entry per token, all of one
        pattern; T is that of ``encoding``. ``attention_mask`` is dropped, as the lengths replace it. Other fields are
        unchanged.

    Raises:
        TypeError: ``encoding`` is not a mapping, or contains one text instead of a list of texts.
        KeyError: ``input_ids`` or a field in ``sequences`` is absent.
        ValueError: ``attention_mask`` has gaps or values other than 0 and 1, or is absent although ``input_ids`` is a
            tensor; or a field does not have the shape of ``input_ids``.

    Dense equivalent: ``encoding`` itself, with its ``attention_mask``.

    Example:
        >>> encoding = {"input_ids": [[5, 6, 7], [0, 0, 8]], "attention_mask": [[1, 1, 1], [0, 0, 1]]}
        >>> mg.interop.from_tokenizer(encoding)
        {'input_ids': masked([[ 5,  6,  7],
                [ 8, --, --]], layout=torch.jagged)}

    Source: https://huggingface.co/docs/transformers/main_classes/tokenizer
    """
    check_layout(layout)
    if not isinstance(encoding, Mapping):
        raise TypeError(
            f"{FUNCTION}: encoding must be a mapping with 'input_ids', found {type(encoding).__name__}; call the "
            "tokenizer itself, as in tokenizer(texts)"
        )
    if isinstance(sequences, str):
        raise TypeError(
            f"{FUNCTION}: sequences must be a collection of names, found the string {sequences!r}; use ({sequences!r},)"
        )
    absent = [name for name in ("input_ids", *sequences) if name not in encoding]
    if absent:
        raise KeyError(
            f"{FUNCTION}: encoding must have {absent[0]!r}, found {', '.join(map(repr, encoding)) or 'no field'}"
        )
    known, lengths = _known(encoding)
    names = [name for name in encoding if name in BY_TOKEN or name in sequences]
    rows = {name: _rows(encoding[name], known, lengths, name) for name in names}
    device = rows["input_ids"].device
    offsets = torch.tensor([0, *lengths], device=device).cumsum(0)
    longest = known.shape[1] if known is not None else max(lengths, default=0)
    pattern = jagged_pattern(offsets, sum(lengths), (len(lengths), longest))
    found: dict[str, Any] = {name: part for name, part in encoding.items() if name != "attention_mask"}
    for name in names:
        batch = MaskedTensor(rows[name], pattern)
        found[name] = batch if layout == torch.jagged else to_dense(batch)
    return found


def _known(encoding: Mapping[str, Any]) -> tuple[Tensor | None, list[int]]:
    """Return the (B, T) mask of tokens, None if there is no padding, and the lengths of the texts."""
    ids = encoding["input_ids"]
    is_list = isinstance(ids, (list, tuple))
    if any(not isinstance(part, (list, tuple, Tensor)) for part in ids) if is_list else _ndim(ids) != 2:
        raise TypeError(
            f"{FUNCTION}: input_ids must be those of a list of texts, (B, T) or B lists; call tokenizer([text])"
        )
    mask = encoding.get("attention_mask")
    if mask is None:
        if not is_list:
            raise ValueError(
                f"{FUNCTION}: encoding must have 'attention_mask' if input_ids is a tensor, to distinguish padding "
                "from tokens; call the tokenizer with return_attention_mask=True, or use "
                "mg.from_lengths(input_ids, lengths)"
            )
        return None, [len(part) for part in ids]
    sizes = [len(part) for part in ids]
    if [len(part) for part in mask] != sizes:
        raise ValueError(
            f"{FUNCTION}: attention_mask must have the shape of input_ids; use the tokenizer for both"
        )
    if not sizes:
        return None, sizes
    if len(set(sizes)) > 1:  # lists without padding
        flat = torch.cat([torch.as_tensor(part).reshape(-1) for part in mask])
        if not bool((flat == 1).all()):
            raise ValueError(
                f"{FUNCTION}: attention_mask of lists of different lengths must be 1 everywhere, found "
                f"{sorted(set(flat.tolist()))}; pad all texts to one length, or none"
            )
        return None, sizes
    whole = _whole(mask).reshape(len(sizes), sizes[0])
    known = whole != 0
    if bool(((whole != 0) & (whole != 1)).any()):
        raise ValueError(
            f"{FUNCTION}: attention_mask must contain 0 and 1, found {sorted(set(whole.flatten().tolist()))}"
        )
    begins = known.long().diff(dim=1, prepend=known.new_zeros(len(known), 1).long()) == 1
    has_gap = begins.sum(1) > 1
    if bool(has_gap.any()):
        text = int(has_gap.nonzero()[0])
        raise ValueError(
            f"{FUNCTION}: attention_mask of text {text} has a gap; only padding before and after a text can be "
            "removed; for gaps use mg.masked(input_ids, attention_mask)"
        )
    return known, known.sum(1).tolist()


def _ndim(part: Any) -> int:
    """Number of dimensions of a tensor or an array; 1 for a list."""
    return int(getattr(part, "ndim", 1))


def _whole(part: Any) -> Tensor:
    """Convert a tensor, an array or a list, possibly of tensors, to a tensor."""
    if isinstance(part, (list, tuple)):
        part = [p.tolist() if isinstance(p, Tensor) else p for p in part]
    return torch.as_tensor(part)


def _rows(part: Any, known: Tensor | None, lengths: list[int], name: str) -> Tensor:
    """Concatenate the entries of all tokens."""
    sizes = lengths if known is None else [known.shape[1]] * len(lengths)
    found = [len(p) if hasattr(p, "__len__") and _ndim(p) else None for p in part]
    if found != sizes:
        raise ValueError(
            f"{FUNCTION}: {name} must have one entry for each of input_ids, {sizes} in each text, found {found}; "
            "remove it from sequences="
        )
    if known is None:
        pieces = [torch.as_tensor(p) for p in part if len(p)]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)
    whole = _whole(part)
    if not whole.numel() and isinstance(part, (list, tuple)):
        whole = whole.long()  # empty lists would be floating-point
    return whole[known.to(whole.device)]
