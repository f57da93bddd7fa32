"""A table whose rows are spread over ranks: what embeddings and bags share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from maskgrad.distributed.sharding.agreement import announce, fingerprint
from maskgrad.distributed.sharding.initialization import Initializer, draw_seed, fill_shard
from maskgrad.distributed.sharding.placement import Arrangement, Placement
from maskgrad.distributed.sharding.ranks import Ranks
from maskgrad.distributed.sharding.shards import mark_sharded
from maskgrad.distributed.sharding.stored_shards import shard_of_loaded, shard_to_save
from maskgrad.nn.lookup import LookupTable

__all__ = ["Gradients", "ShardedTable"]

Gradients = Literal["average", "sum"]


class ShardedTable(LookupTable):
    """The rows of a table that this rank keeps, ``weight``, a plain parameter; and where the others are."""

    ranks: Ranks
    placement: Placement

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        scale_grad_by_freq: bool,
        sparse: bool | None,
        *,
        placement: Arrangement | int,
        gradients: Gradients,
        init: Initializer | None,
        process_group: torch.distributed.ProcessGroup | None,
        device: Any,
        dtype: torch.dtype | None,
        _ranks: Ranks | None = None,
    ) -> None:
        torch.nn.Module.__init__(self)
        self.ranks = Ranks(process_group) if _ranks is None else _ranks
        dtype = dtype if dtype is not None else torch.get_default_dtype()
        device = torch.get_default_device() if device is None else torch.device(device)
        refusal: Exception | None = None
        try:
            _check(num_embeddings, embedding_dim, norm_type, scale_grad_by_freq, sparse, gradients, dtype)
            self.padding_idx = _inside(padding_idx, num_embeddings)
            self.placement = Placement(num_embeddings, self.ranks.size, self.ranks.rank, placement)
        except (TypeError, ValueError) as error:
            refusal = error
        seed = draw_seed()
        facts = (
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            placement,
            gradients,
            str(dtype),
        )
        if device.type != "meta":
            told = torch.full((self.ranks.size, 1), seed, device=device)
            seed = int(announce(self.ranks, told, fingerprint(*facts), refusal, type(self).__name__)[0])
        elif refusal is not None:
            raise refusal
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = max_norm, norm_type, False, True
        self.gradients, self.init = gradients, init
        self._plan = fingerprint(*facts)
        shard = torch.empty(self.placement.local_rows, embedding_dim, device=device, dtype=dtype)
        self._fill(shard, seed)
        self.weight = torch.nn.Parameter(shard)
        self._register()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the table again, from a seed that rank 0 draws; all ranks call it."""
        self.flush()
        told = torch.full((self.ranks.size, 1), draw_seed(), device=self.weight.device)
        self._fill(self.weight, int(announce(self.ranks, told, self._plan, None, type(self).__name__)[0]))

    def full_weight(self) -> Tensor:
        """(num_embeddings, embedding_dim): the whole table, on each rank; all ranks call it, and have memory for it."""
        self.flush()
        place = self.placement
        counts = [place.first_row(rank + 1) - place.first_row(rank) for rank in range(self.ranks.size)]
        gathered = self.ranks.gather(self.weight.detach(), counts)
        return gathered[place.physical(torch.arange(self.num_embeddings, device=gathered.device))]

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

    def take(self, embeddings: Tensor, device: Any, freeze: bool) -> None:
        """Keep a copy of this rank's rows of a whole table (N, D), on ``device`` or where they are."""
        rows = self.placement.own_rows(embeddings.device)
        if self.placement.arrangement == "cyclic":
            own = embeddings[rows.clamp_min(0)]
        else:
            first = self.placement.first_row(self.ranks.rank)
            own = embeddings[first : first + len(rows)].clone()
        self.weight = torch.nn.Parameter(own.detach().to(device), requires_grad=not freeze)
        self._register()

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
        mark_sharded(self.weight, self.ranks)  # assign=True has put another in its place

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        mark_sharded(self.weight, self.ranks)  # to_empty() has put another in its place
        return self


def _check(
    rows: int, columns: int, norm_type: float, by_frequency: bool, sparse: bool | None, gradients: str,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    for name, value in (("num_embeddings", rows), ("embedding_dim", columns)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} must be a number of rows or columns, 0 or more; got {value!r}")
    if by_frequency:
        raise ValueError(
            "scale_grad_by_freq=True is not available for a sharded table: its gradient is sparse, and PyTorch has no "
            "such gradient; divide the loss of each sample by its frequency instead"
        )
    if sparse is False:
        raise ValueError(
            "sparse=False is not available for a sharded table: a dense gradient of a shard is as large as the shard; "
            "leave sparse out"
        )
    if gradients not in get_args(Gradients):
        raise ValueError(f'gradients must be "average" or "sum" (over the ranks); got {gradients!r}')
    if not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"dtype must be floating-point or complex; got {dtype}")


def _inside(padding_idx: int | None, rows: int) -> int | None:
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ValueError(f"padding_idx must be one of the {rows} rows; got {padding_idx}")
    return padding_idx % rows
