"""EmbeddingBag whose table is larger than one machine."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.distributed.sharding.initialization import Initializer
from maskgrad.distributed.sharding.look_up import look_up
from maskgrad.distributed.sharding.placement import Arrangement
from maskgrad.distributed.sharding.table import Gradients, ShardedTable
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.nn.lookup import rows_and_columns

__all__ = ["ShardedEmbeddingBag"]

_MODES = ("sum", "mean", "max")


class ShardedEmbeddingBag(ShardedTable):
    r"""Sums, means or maxima of bags of rows of a table that is spread over the ranks of a process group.

    .. math:: y_b = \sum_{i \in b} w_i\, W_{x_i}, \qquad \frac{1}{|b|} \sum_{i \in b} W_{x_i} \quad\text{or}\quad
              \max_{i \in b} W_{x_i}

    To ``torch.nn.EmbeddingBag`` as :class:`ShardedEmbedding` is to ``torch.nn.Embedding``. Bags are formed on the rank
    that has their indices.

    Args:
        num_embeddings: number of rows of the whole table.
        embedding_dim: size of a row.
        max_norm: rows are scaled down to this norm, in place, when they are looked up.
        norm_type: which norm.
        scale_grad_by_freq: refused; there is no such sparse gradient.
        mode: ``"sum"``, ``"mean"`` or ``"max"``; the gradient is sparse for all three.
        sparse: None or True; the gradient is always sparse.
        include_last_offset: ``offsets`` ends with the number of indices.
        padding_idx: a row that belongs to no bag, and starts with zeros; may be negative.
        placement: which rank keeps which rows, as in :class:`ShardedEmbedding`.
        gradients: ``"average"`` or ``"sum"`` over ranks, as there.
        init: ``init(rows, generator)``, as there.
        process_group: the ranks; None: all of them, or this process alone.
        device: where this rank's rows are made.
        dtype: floating-point.

    Shapes: indices (B, N), or (N,) with ``offsets`` (B,), give (B, embedding_dim); ``per_sample_weights`` have the
    shape of the indices. Masked indices belong to no bag.

    Gradient:
        COO rows with each index once, halves added up in float32; and for ``per_sample_weights``, which stays here.

    Raises:
        ValueError: what ``torch.nn.EmbeddingBag`` refuses; on every rank, as all errors of a look-up.
        IndexError, TypeError, RuntimeError: as for :class:`ShardedEmbedding`.

    Dense equivalent: ``torch.nn.EmbeddingBag`` in one process, on the joint batch of all ranks.

    Example:
        >>> bag = mg.distributed.ShardedEmbeddingBag.from_pretrained(torch.tensor([[1.], [2.], [4.]]), mode="sum")
        >>> bag(torch.tensor([0, 1, 2]), torch.tensor([0, 1])).view(-1)
        tensor([1., 6.])

    Source: ``torch.nn.EmbeddingBag``, and the row-wise tables of TorchRec.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool | None = None,
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        placement: Arrangement | int = "block",
        gradients: Gradients = "average",
        init: Initializer | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f'mode must be "sum", "mean" or "max"; got {mode!r}')
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
            placement=placement, gradients=gradients, init=init, process_group=process_group, device=device,
            dtype=dtype,
        )  # fmt: skip
        self.mode, self.include_last_offset = mode, include_last_offset

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        input: Tensor | MaskedTensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | MaskedTensor | None = None,
    ) -> Tensor | MaskedTensor:
        """Look up and reduce; the arguments are those of ``torch.nn.EmbeddingBag``. Every rank takes part."""
        refusal = self.refusal(input, offsets, per_sample_weights)
        ((rows, places),) = look_up(
            [self], [input], repeated=[False], refusal=refusal, what=type(self).__name__
        )
        bags: Tensor | MaskedTensor = self.result(rows, places, input, offsets, per_sample_weights)
        return bags

    def wants_repeated(self, input: Any) -> bool:  # noqa: ARG002  (the signature of the family)
        """Whether a look-up is to give a row for each index, rather than for each distinct one."""
        return False

    def refusal(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Exception | None:
        """Why PyTorch would refuse these arguments; it is asked with a table of one zero, before anything is sent."""
        if not isinstance(input, Tensor | MaskedTensor) or input.dtype not in (torch.int32, torch.int64):
            return None  # the look-up says so
        try:
            with torch.no_grad():
                F.embedding_bag(
                    input * 0, self.weight.new_zeros(1, 1), offsets, mode=self.mode,  # type: ignore[arg-type]
                    per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset,
                )  # fmt: skip
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            return error
        return None

    def result(
        self, rows: Tensor, places: Any, input: Any, offsets: Any = None, per_sample_weights: Any = None
    ) -> Any:
        """Bags of rows (m, D), which stand at ``places`` in the shape of ``input``."""
        padding = None
        if self.padding_idx is not None:
            places, padding = _one_padding(places, input, self.padding_idx)
        if len(rows) == 0:
            rows = torch.cat(
                [rows, rows.new_zeros((1, *rows.shape[1:]))]
            )  # PyTorch wants a row even for empty bags
        return F.embedding_bag(
            places, rows, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset, padding_idx=padding,
        )  # fmt: skip

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        placement: Arrangement | int = "block",
        gradients: Gradients = "average",
        process_group: torch.distributed.ProcessGroup | None = None,
        device: Any = None,
    ) -> ShardedEmbeddingBag:
        """A table with given rows, of which this rank copies its own; frozen unless told otherwise.

        Args are those of the class, and of :meth:`ShardedEmbedding.from_pretrained`.

        Raises:
            ValueError: ``embeddings`` is not two-dimensional.
        """
        rows, columns = rows_and_columns(embeddings)
        bag = cls(
            rows, columns, max_norm, norm_type, scale_grad_by_freq, mode, sparse,
            include_last_offset=include_last_offset, padding_idx=padding_idx, placement=placement, gradients=gradients,
            process_group=process_group, device="meta", dtype=embeddings.dtype,
        )  # fmt: skip
        bag.take(embeddings, device, freeze)
        return bag


def _one_padding(places: Any, input: Any, padding_idx: int) -> tuple[Any, int | None]:
    """``places`` in which all indices ``padding_idx`` have the first one's place, and that place; None without any."""
    is_padding = input == padding_idx
    if isinstance(is_padding, MaskedTensor):
        is_padding = is_padding.filled(False)
    plain = places.filled(0) if isinstance(places, MaskedTensor) else places
    found = plain[is_padding]
    if not len(found):
        return places, None
    first = found[0]
    return torch.where(is_padding, first, places), int(first)
