"""Base of sharded embeddings and bags: a table with rows sharded over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed, exchange_numbers
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.sharding.placement import (
    Arrangement,
    Initializer,
    Placement,
    draw_seed,
    fill_shard,
    shard_of_loaded,
    shard_to_save,
)
from maskgrad.distributed.sharding.shards import mark_sharded
from maskgrad.nn.lookup import LookupTable, rows_and_columns

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Gradients", "ShardedTable"]

Gradients = Literal["average", "sum"]


class ShardedTable(LookupTable):
    """A sharded table: this rank's rows ``weight``, a plain parameter, and the placement of the others."""

    ranks: ProcessGroup
    placement: Placement
    repeats_rows = True
    """Whether a lookup of plain indices returns a row for each, not only for distinct ones."""

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
        torch.nn.Module.__init__(self)
        self.ranks = ProcessGroup(process_group, type(self).__name__, or_alone=True)
        dtype = dtype if dtype is not None else torch.get_default_dtype()
        device = torch.get_default_device() if device is None else torch.device(device)
        with Postponed() as postponed:
            _check(num_embeddings, embedding_dim, padding_idx, scale_grad_by_freq, sparse, gradients, dtype)
            self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
            self.placement = Placement(num_embeddings, self.ranks.size, self.ranks.rank, placement)
        self._plan = (
            f"{num_embeddings=}; {embedding_dim=}; {padding_idx=}; {max_norm=}; {norm_type=}; {placement=}; "
            f"{gradients=}; {dtype=}"
        )
        seed = self._common_seed(device, postponed.error)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = max_norm, norm_type, False, True
        self.gradients, self.init = gradients, init
        shard = torch.empty(self.placement.local_rows, embedding_dim, device=device, dtype=dtype)
        self._fill(shard, seed)
        self.weight = torch.nn.Parameter(shard)
        self._register()

    def _common_seed(self, device: torch.device, error: Exception | None = None) -> int:
        """Broadcast a seed from rank 0; checks that all ranks create the same table."""
        seed = draw_seed()
        if device.type == "meta":
            if error is not None:
                raise error
            return seed
        seeds = torch.full((self.ranks.size, 1), seed, device=device)
        return int(exchange_numbers(self.ranks, seeds, self._plan, error, self.ranks.what)[0])

    @classmethod
    def _own_rows_of(cls, embeddings: Tensor, freeze: bool, device: Any, **options: Any) -> Self:
        """Make a table with this rank's rows of ``embeddings`` (N, D), to ``device`` or where they are."""
        table = cls(*rows_and_columns(embeddings), device="meta", dtype=embeddings.dtype, **options)
        rows = table.placement.own_rows(embeddings.device)
        if table.placement.arrangement == "cyclic":
            own = embeddings[rows.clamp_min(0)]
        else:
            first = table.placement.first_row(table.ranks.rank)
            own = embeddings[first : first + len(rows)].clone()
        table.weight = torch.nn.Parameter(own.detach().to(device), requires_grad=not freeze)
        table._register()
        return table

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the table again, from a seed of rank 0; all ranks must call this."""
        self.flush()
        self._fill(self.weight, self._common_seed(self.weight.device))

    def full_weight(self) -> Tensor:
        """The whole table (num_embeddings, embedding_dim) on each rank, in memory; all ranks must call this."""
        self.flush()
        place, shard = self.placement, self.weight.detach()
        counts = [place.first_row(rank + 1) - place.first_row(rank) for rank in range(self.ranks.size)]
        padded = torch.nn.functional.pad(shard, (0, 0, 0, max(counts) - len(shard)))
        parts = [part[:count] for part, count in zip(self.ranks.gather(padded), counts, strict=True)]
        return torch.cat(parts)[place.physical(torch.arange(self.num_embeddings, device=shard.device))]

    def extra_repr(self) -> str:
        """For ``print``."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, placement={self.placement.arrangement!r}, "
            f"rank {self.ranks.rank} of {self.ranks.size} has {self.placement.local_rows} rows"
        )

    @property
    def _local_padding(self) -> int | None:
        return None if self.padding_idx is None else self.placement.local_row(self.padding_idx)

    def _fill(self, shard: Tensor, seed: int) -> None:
        if shard.is_meta:
            return
        fill_shard(shard, self.placement, seed, self.init)
        if self._local_padding is not None:
            with torch.no_grad():
                shard[self._local_padding] = 0

    def _register(self) -> None:
        super()._register()
        mark_sharded(self.weight, self.ranks)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        saved = shard_to_save(destination.pop(f"{prefix}weight"), self.placement, self.ranks)
        if saved is not None:
            destination[f"{prefix}weight"] = saved

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        key = f"{prefix}weight"
        table = state_dict.get(key)
        if self.placement.lies_elsewhere:
            state_dict = {**state_dict, key: self.weight.detach()}
        elif table is not None:
            found = shard_of_loaded(table, self.weight, self.placement)
            if found is None:
                errors.append(
                    f"{key} has shape {tuple(table.shape)}; this table has {self.num_embeddings} rows of "
                    f"{self.embedding_dim}"
                )
                return
            state_dict = {**state_dict, key: found}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        mark_sharded(self.weight, self.ranks)  # replaced by assign=True

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        mark_sharded(self.weight, self.ranks)  # replaced by to_empty()
        return self


def _check(
    rows: int, columns: int, padding_idx: int | None, by_frequency: bool, sparse: bool | None, gradients: str,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    for name, value in (("num_embeddings", rows), ("embedding_dim", columns)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} must be a nonnegative number of rows or columns; got {value!r}")
    if by_frequency:
        raise ValueError(
            "scale_grad_by_freq=True is not available for a sharded table: its gradient is sparse, and PyTorch does "
            "not support that; divide the loss of each sample by its frequency instead"
        )
    if sparse is False:
        raise ValueError(
            "sparse=False is not available for a sharded table: a dense gradient of a shard is as large as the shard; "
            "omit sparse"
        )
    if gradients not in get_args(Gradients):
        raise ValueError(f'gradients must be "average" or "sum" (over the ranks); got {gradients!r}')
    if not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"dtype must be floating-point or complex; got {dtype}")
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise ValueError(f"padding_idx must be one of the {rows} rows; got {padding_idx}")
