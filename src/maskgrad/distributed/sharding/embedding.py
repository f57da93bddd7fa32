"""Embedding and EmbeddingBag with tables sharded over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.distributed.agreement import Postponed
from maskgrad.distributed.sharding.look_up import look_up
from maskgrad.distributed.sharding.placement import Arrangement, Initializer
from maskgrad.distributed.sharding.table import Gradients, ShardedTable
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["ShardedEmbedding", "ShardedEmbeddingBag"]


class ShardedEmbedding(ShardedTable):
    r"""An embedding with rows sharded over the ranks of a process group.

    .. math:: y_i = W_{x_i}, \qquad
              \frac{\partial L}{\partial W_r} =
              \frac{1}{W}\sum_{\text{ranks}}\ \sum_{i:\,x_i = r} \frac{\partial L}{\partial y_i}

    Each rank stores ``weight``, its own rows, as a plain parameter. A lookup sends the distinct indices of the batch to
    the ranks with the rows, and gets the rows; ``backward()`` sends back one gradient for each of these rows.
    ``weight.grad`` is a sparse tensor for ``mg.optim``; the optimizer's states are stored with the rows.

    All ranks must create the table, look up and call ``backward()`` the same number of times in the same order; a rank
    without data passes an empty batch. For ``unspecified="zero"`` and ``flush()`` see ``mg.nn.Embedding``.

    Args:
        num_embeddings: number of rows of the whole table.
        embedding_dim: size of a row.
        padding_idx: a row that gets no gradient, and starts with zeros; may be negative.
        max_norm: rows with a larger norm are renormalized, in place, when they are looked up.
        norm_type: the p of the p-norm for ``max_norm``.
        scale_grad_by_freq: must be False; PyTorch has no such sparse gradient.
        sparse: None or True; the gradient is always sparse.
        placement: ``"block"``: rank r has the r-th part of the rows; ``"cyclic"``: neighbouring rows are on different
            ranks, for indices sorted by frequency; an int: that rank has all rows.
        gradients: ``"average"``, the mean over ranks, as in DistributedDataParallel: right if
            the loss of each rank is the mean of equally many samples. ``"sum"``: right if each rank's loss is a sum, or
            divided by a global count.
        init: ``init(rows, generator)`` fills rows (k, embedding_dim) in place; None: standard normal values. Called
            for 4,096 rows at a time: the values do not depend on the number of ranks, nor need the whole table.
        process_group: the ranks; None: all of them, or this process only if there is no process group.
        device: device of this rank's rows.
        dtype: floating-point or complex.

    Shapes: indices, int32 or int64, of any shape ``(*)`` give ``(*, embedding_dim)``. A masked index is not looked up,
    and gives an unspecified row. ``weight`` is (rows of this rank, embedding_dim).

    Gradient:
        COO rows, with distinct indices in order; half precision is added in float32. There is no second derivative
        with respect to ``weight``.

    Raises:
        ValueError: ``sparse=False`` or ``scale_grad_by_freq=True``, or an argument outside its range.
        IndexError: in a lookup, an index outside the table; on every rank, before rows are sent.
        TypeError: indices of another dtype; on every rank.
        RuntimeError: the ranks disagree about the table or the lookup, or one of them has ended.

    Dense equivalent: ``torch.nn.Embedding`` in one process, on the joint batch of all ranks.

    Example:
        >>> table = mg.distributed.ShardedEmbedding(5, 2)  # one process: the same values as on a thousand
        >>> table(torch.tensor([[0, 4, 4]])).sum().backward()
        >>> table.weight.grad.to_dense()[[0, 4]]
        tensor([[1., 1.],
                [2., 2.]])

    Source: the row-wise tables of TorchRec, and earlier parameter servers.
    """

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: Tensor | MaskedTensor) -> Tensor | MaskedTensor:
        """Look up the indices ``input``; every rank must take part."""
        ((rows, places),) = look_up([self], [input], error=None, what=self.ranks.what)
        return self.result(rows, places, input)

    def result(self, rows: Tensor, places: Any, _: Any) -> Tensor | MaskedTensor:
        """The row of each index, from rows (m, D) with positions ``places``."""
        if not isinstance(places, MaskedTensor):
            return rows.view(*places.shape, *rows.shape[1:])
        # Masked indices are 0, and row 0 exists even if nothing was looked up: through it backward()
        # reaches the exchange, in which this rank must take part.
        return F.embedding(places, _with_a_row(rows))

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool | None = None,
        *,
        placement: Arrangement | int = "block",
        gradients: Gradients = "average",
        process_group: torch.distributed.ProcessGroup | None = None,
        device: Any = None,
    ) -> ShardedEmbedding:
        """A table with the rows of ``embeddings`` (N, D); each rank copies its own rows; frozen by default.

        Each rank reads its part only, so that the tensor may be mapped from a file (``torch.load(path, mmap=True)``).
        ``device`` is that of the rows; None: that of ``embeddings``. The other arguments are those of the class.

        Raises:
            ValueError: ``embeddings`` is not two-dimensional.
        """
        return cls._own_rows_of(
            embeddings, freeze, device, padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type,
            scale_grad_by_freq=scale_grad_by_freq, sparse=sparse, placement=placement, gradients=gradients,
            process_group=process_group,
        )  # fmt: skip


_MODES = ("sum", "mean", "max")


class ShardedEmbeddingBag(ShardedTable):
    r"""Sums, means or maxima of bags of rows, from a table sharded over the ranks of a process group.

    .. math:: y_b = \sum_{i \in b} w_i\, W_{x_i}, \qquad \frac{1}{|b|} \sum_{i \in b} W_{x_i} \quad\text{or}\quad
              \max_{i \in b} W_{x_i}

    The sharded form of ``torch.nn.EmbeddingBag``, as :class:`ShardedEmbedding` is of ``torch.nn.Embedding``. Bags are
    computed on the rank with their indices.

    Args:
        num_embeddings: number of rows of the whole table.
        embedding_dim: size of a row.
        max_norm: rows with a larger norm are renormalized, in place, when they are looked up.
        norm_type: the p of the p-norm for ``max_norm``.
        scale_grad_by_freq: must be False; PyTorch has no such sparse gradient.
        mode: ``"sum"``, ``"mean"`` or ``"max"``; the gradient is sparse for all three.
        sparse: None or True; the gradient is always sparse.
        include_last_offset: ``offsets`` ends with the number of indices.
        padding_idx: a row that belongs to no bag, and starts with zeros; may be negative.
        placement: distribution of the rows, as in :class:`ShardedEmbedding`.
        gradients: ``"average"`` or ``"sum"`` over ranks, as there.
        init: ``init(rows, generator)``, as there.
        process_group: the ranks; None: all of them, or this process only.
        device: device of this rank's rows.
        dtype: floating-point.

    Shapes: indices (B, N), or (N,) with ``offsets`` (B,), give (B, embedding_dim); ``per_sample_weights`` have the
    shape of the indices. Masked indices belong to no bag.

    Gradient:
        COO rows with distinct indices, half precision added in float32; and for ``per_sample_weights``, on
        this rank.

    Raises:
        ValueError: as for ``torch.nn.EmbeddingBag``; on every rank, as all errors of a lookup.
        IndexError, TypeError, RuntimeError: as for :class:`ShardedEmbedding`.

    Dense equivalent: ``torch.nn.EmbeddingBag`` in one process, on the joint batch of all ranks.

    Example:
        >>> bag = mg.distributed.ShardedEmbeddingBag.from_pretrained(torch.tensor([[1.], [2.], [4.]]), mode="sum")
        >>> bag(torch.tensor([0, 1, 2]), torch.tensor([0, 1])).view(-1)
        tensor([1., 6.])

    Source: ``torch.nn.EmbeddingBag``, and the row-wise tables of TorchRec.
    """

    repeats_rows = False

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
        """Look up and reduce; the arguments are those of ``torch.nn.EmbeddingBag``. Every rank must take part."""
        error = self.error(input, offsets, per_sample_weights)
        ((rows, places),) = look_up([self], [input], error=error, what=self.ranks.what)
        return self.result(rows, places, input, offsets, per_sample_weights)  # type: ignore[no-any-return]

    def error(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Exception | None:
        """PyTorch's error for these arguments, from a table of one zero, before any exchange."""
        if not isinstance(input, Tensor | MaskedTensor) or input.dtype not in (torch.int32, torch.int64):
            return None  # the lookup raises the error
        with Postponed() as postponed, torch.no_grad():
            F.embedding_bag(
                input * 0, self.weight.new_zeros(1, 1), offsets, mode=self.mode,
                per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset,
            )  # fmt: skip
        return postponed.error

    def result(
        self, rows: Tensor, places: Any, input: Any, offsets: Any = None, per_sample_weights: Any = None
    ) -> Any:
        """Reduce bags of rows (m, D) with positions ``places`` in the shape of ``input``."""
        padding = None
        if self.padding_idx is not None:
            places, padding = _one_padding(places, input, self.padding_idx)
        return F.embedding_bag(
            places, _with_a_row(rows), offsets, mode=self.mode, per_sample_weights=per_sample_weights,
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
        """As :meth:`ShardedEmbedding.from_pretrained`, with the arguments of this class.

        Raises:
            ValueError: ``embeddings`` is not two-dimensional.
        """
        return cls._own_rows_of(
            embeddings, freeze, device, max_norm=max_norm, norm_type=norm_type, scale_grad_by_freq=scale_grad_by_freq,
            mode=mode, sparse=sparse, include_last_offset=include_last_offset, padding_idx=padding_idx,
            placement=placement, gradients=gradients, process_group=process_group,
        )  # fmt: skip


def _with_a_row(rows: Tensor) -> Tensor:
    """``rows``, or a row of zeros: PyTorch needs one even if nothing is looked up."""
    return rows if len(rows) else torch.cat([rows, rows.new_zeros((1, *rows.shape[1:]))])


def _one_padding(places: Any, input: Any, padding_idx: int) -> tuple[Any, int | None]:
    """``places`` with the same position for all indices ``padding_idx``, and that position; None without any."""
    is_padding = input == padding_idx
    if isinstance(is_padding, MaskedTensor):
        is_padding = is_padding.filled(False)
    plain = places.filled(0) if isinstance(places, MaskedTensor) else places
    found = plain[is_padding]
    if not len(found):
        return places, None
    first = found[0]
    return torch.where(is_padding, first, places), int(first)
