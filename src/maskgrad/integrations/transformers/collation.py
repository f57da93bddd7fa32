"""Collation of tokenized texts to batches of MaskedTensors, for trainers and data loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.interop import collate_jagged
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.storage import to_dense

__all__ = ["TokenCollator", "plain_tokens"]

#: Fillers that models of transformers expect for unspecified tokens.
FILLERS = {"labels": -100}
#: Name of the mask argument in models of transformers.
MASK = "attention_mask"


@dataclass
class TokenCollator:
    """Collates tokenized samples, with masked padding: a ``data_collator`` or ``collate_fn``.

    Args:
        layout: ``torch.strided`` for padding under a Boolean mask, ``torch.jagged`` for no padding.
        ignore_index: labels with this value are unspecified.

    ``input_ids`` and all other fields with one entry for each token become MaskedTensors ``(B, T)`` of one pattern.
    ``attention_mask`` is dropped: tokens for which it is 0 are unspecified. ``labels`` are also unspecified where they
    are ``ignore_index``; they have a Boolean mask then. Everything else is stacked.

    Raises:
        KeyError: a sample has no ``input_ids``.

    Example:
        >>> collate = mg.integrations.TokenCollator()
        >>> batch = collate([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}])
        >>> batch["labels"]
        masked([[--,  6,  7],
                [ 8, --, --]])

    Dense equivalent: ``transformers.DataCollatorForTokenClassification``.
    """

    layout: torch.layout = torch.strided
    ignore_index: int = -100

    def __call__(self, features: list[Mapping[str, Any]]) -> dict[str, Any]:
        """The batch."""
        samples = [{name: _tensor(part) for name, part in one.items()} for one in features]
        for one in samples:
            if "input_ids" not in one:
                raise KeyError(
                    f"TokenCollator: each sample must have 'input_ids', found {', '.join(map(repr, one)) or 'none'}"
                )
        for name in samples[0]:  # an empty list has no dtype
            dtypes = [
                one[name].dtype for one in samples if isinstance(one.get(name), Tensor) and one[name].numel()
            ]
            for one in samples:
                if isinstance(one.get(name), Tensor) and not one[name].numel():
                    one[name] = one[name].to(dtypes[0] if dtypes else torch.int64)
        names = [name for name in samples[0] if _of_tokens(name, samples)]
        rest = [name for name in samples[0] if name not in names]
        if MASK in names:  # samples may be padded already
            kept = [one[MASK] != 0 for one in samples]
            for one, keep in zip(samples, kept, strict=True):
                one |= {name: one[name][keep] for name in names}
            names.remove(MASK)
            samples = [{name: part for name, part in one.items() if name != MASK} for one in samples]
        batch = collate_jagged(samples, sequences=names, stack=rest, layout=self.layout)
        labels = batch.get("labels") if "labels" in names else None
        if labels is not None:
            dense = to_dense(labels)
            known = dense.mask & (dense.filled(self.ignore_index) != self.ignore_index)
            if not torch.equal(known, dense.mask):
                batch["labels"] = masked(dense.filled(self.ignore_index), known)
        return batch  # type: ignore[no-any-return]


def plain_tokens(batch: Mapping[str, Any], padding: int, keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a batch for models of transformers: padded, with an attention mask, unspecified labels -100.

    Raises:
        ValueError: labels or embeddings are masked floating-point values, without such a filler.
    """
    found = {}
    for name, part in batch.items():
        if not isinstance(part, MaskedTensor) or name in keep:
            found[name] = part
            continue
        if part.dtype.is_floating_point:
            raise ValueError(
                f"TrainerMixin: {name!r} are masked floats, for which models of transformers accept no mask; pass "
                "compute_loss_func= to the Trainer for labels, or write the model for MaskedTensors"
            )
        if name == "input_ids" and MASK not in batch:
            found[MASK] = part.mask.long()
        filler = FILLERS.get(name, padding if name == "input_ids" else False)  # keeps the dtype
        found[name] = part.filled(filler)
    return found


def _tensor(part: Any) -> Any:
    return torch.as_tensor(part) if isinstance(part, (list, tuple)) or hasattr(part, "__array__") else part


def _of_tokens(name: str, samples: list[dict[str, Any]]) -> bool:
    """Return whether a field has one entry per token in each sample."""
    return all(
        isinstance(one.get(name), Tensor) and one[name].ndim and len(one[name]) == len(one["input_ids"])
        for one in samples
    )
