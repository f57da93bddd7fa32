"""Embedding whose table is larger than one machine."""

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

__all__ = ["ShardedEmbedding"]


class ShardedEmbedding(ShardedTable):
    r"""An embedding whose rows are spread over the ranks of a process group.

    .. math:: y_i = W_{x_i}, \qquad
              \frac{\partial L}{\partial W_r} =
              \frac{1}{W}\sum_{\text{ranks}}\ \sum_{i:\,x_i = r} \frac{\partial L}{\partial y_i}

    Each rank keeps ``weight``, its own rows, as a plain parameter, and asks the others for the rest: a look-up sends
    the distinct indices of the batch to the ranks that have the rows, and gets the rows; ``backward()`` sends back
    one gradient for each of these rows. ``weight.grad`` is a sparse tensor, and ``mg.optim`` steps it like any other;
    the optimizer's states lie with the rows.

    All ranks make the table, look up and call ``backward()`` the same number of times in the same order; a rank without
    data passes an empty batch. ``mg.nn.Embedding`` tells about ``unspecified="zero"`` and ``flush()``.

    Args:
        num_embeddings: number of rows of the whole table.
        embedding_dim: size of a row.
        padding_idx: a row that gets no gradient, and starts with zeros; may be negative.
        max_norm: rows are scaled down to this norm, in place, when they are looked up.
        norm_type: which norm.
        scale_grad_by_freq: refused; there is no such sparse gradient.
        sparse: None or True; the gradient is always sparse.
        placement: ``"block"``: rank r has the r-th part of the rows; ``"cyclic"``: neighbouring rows lie on different
            ranks, for indices that are sorted by how often they occur; a number: that rank has all rows.
        gradients: ``"average"``, the mean over ranks, as DistributedDataParallel does for other parameters: right if
            the loss of each rank is the mean of as many samples. ``"sum"``: right if each rank's loss is already
            divided by a global number, or is a sum.
        init: ``init(rows, generator)`` fills rows (k, embedding_dim) in place; None: standard normal numbers. Called
            for 4,096 rows at a time: the values do not depend on the number of ranks, nor need the whole table.
        process_group: the ranks; None: all of them, or this process alone if there is no process group.
        device: where this rank's rows are made.
        dtype: floating-point or complex.

    Shapes: indices, int32 or int64, of any shape ``(*)`` give ``(*, embedding_dim)``. A masked index is not looked up,
    and gives an unspecified row. ``weight`` is (rows of this rank, embedding_dim).

    Gradient:
        COO rows, each index once and in order; halves are added up in float32. Not twice: the second derivative with
        respect to ``weight`` is refused.

    Raises:
        ValueError: ``sparse=False`` or ``scale_grad_by_freq=True``, or an argument outside its range.
        IndexError: in a look-up, an index outside the table; on every rank, before rows are sent.
        TypeError: indices of another dtype; on every rank.
        RuntimeError: the ranks disagree about the table or the look-up, or one of them has ended.

    Dense equivalent: ``torch.nn.Embedding`` in one process, on the joint batch of all ranks.

    Example:
        >>> table = mg.distributed.ShardedEmbedding(5, 2)  # one process: the same values as on a thousand
        >>> table(torch.tensor([[0, 4, 4]])).sum().backward()
        >>> table.weight.grad.to_dense()[[0, 4]]
        tensor([[1., 1.],
                [2., 2.]])

    Source: the row-wise tables of TorchRec, and the parameter servers before it.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool | None = None,
        *,
        placement: Arrangement | int = "block",
        gradients: Gradients = "average",
        init: Initializer | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse,
            placement=placement, gradients=gradients, init=init, process_group=process_group, device=device,
            dtype=dtype,
        )  # fmt: skip

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: Tensor | MaskedTensor) -> Tensor | MaskedTensor:
        """Look up; ``input`` holds indices. Every rank takes part."""
        ((rows, places),) = look_up(
            [self],
            [input],
            repeated=[self.wants_repeated(input)],
            refusal=None,
            what=type(self).__name__,
        )
        return self.result(rows, places, input)

    def wants_repeated(self, input: Any) -> bool:
        """Whether a look-up is to give a row for each index, rather than for each distinct one."""
        return not isinstance(input, MaskedTensor)

    def refusal(self, input: Any) -> Exception | None:  # noqa: ARG002
        """Why PyTorch would refuse these arguments, apart from what the look-up finds."""
        return None

    def result(self, rows: Tensor, places: Any, _: Any) -> Tensor | MaskedTensor:
        """The row of each index, from rows (m, D) that stand at ``places``."""
        if not isinstance(places, MaskedTensor):
            return rows.view(*places.shape, *rows.shape[1:])
        # The index under the mask is 0, and there is a row 0 even if nothing was looked up. It leads backward() to the
        # exchange, in which this rank takes part all the same.
        found = rows if len(rows) else torch.cat([rows, rows.new_zeros((1, *rows.shape[1:]))])
        return F.embedding(places, found)  # type: ignore[arg-type]

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
        """A table with given rows, of which this rank copies its own; frozen unless told otherwise.

        Args:
            embeddings: (N, D), the whole table; each rank reads its part only, so it may be mapped from a file
                (``torch.load(path, mmap=True)``).
            freeze: whether it stays as it is.
            padding_idx: as in the class, and so are the other arguments.
            max_norm: rows are scaled down to this norm when they are looked up.
            norm_type: which norm.
            scale_grad_by_freq: refused.
            sparse: None or True.
            placement: which rank keeps which rows.
            gradients: ``"average"`` or ``"sum"``.
            process_group: the ranks.
            device: where the rows go; None: where ``embeddings`` are.

        Raises:
            ValueError: ``embeddings`` is not two-dimensional.
        """
        rows, columns = rows_and_columns(embeddings)
        table = cls(
            rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, placement=placement,
            gradients=gradients, process_group=process_group, device="meta", dtype=embeddings.dtype,
        )  # fmt: skip
        table.take(embeddings, device, freeze)
        return table
