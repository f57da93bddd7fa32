"""Training on several processes: gradients, losses and statistics equal to those of one process on the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskgrad.distributed.all_reduction import AllReduce, all_reduce, all_reduce_gradients
from maskgrad.distributed.batch_normalization import SyncBatchNorm
from maskgrad.distributed.checks import check_optimizer, check_parameters
from maskgrad.distributed.global_sums import global_losses, sampler_mask
from maskgrad.distributed.preparation import prepare
from maskgrad.distributed.reductions import count, mean, std, sum, var
from maskgrad.distributed.sharding.checkpoint import (
    load_checkpoint,
    load_optimizer_state_dict,
    optimizer_state_dict,
    save_checkpoint,
)
from maskgrad.distributed.sharding.collection import ShardedTables, spread_tables
from maskgrad.distributed.sharding.embedding import ShardedEmbedding, ShardedEmbeddingBag
from maskgrad.distributed.sharding.shards import clip_grad_norm_, is_sharded

if TYPE_CHECKING:
    from maskgrad.distributed.data_parallel import DataParallel

__all__ = [
    "AllReduce",
    "DataParallel",
    "ShardedEmbedding",
    "ShardedEmbeddingBag",
    "ShardedTables",
    "SyncBatchNorm",
    "all_reduce",
    "all_reduce_gradients",
    "check_optimizer",
    "check_parameters",
    "clip_grad_norm_",
    "count",
    "global_losses",
    "is_sharded",
    "load_checkpoint",
    "load_optimizer_state_dict",
    "mean",
    "optimizer_state_dict",
    "prepare",
    "sampler_mask",
    "save_checkpoint",
    "spread_tables",
    "std",
    "sum",
    "var",
]


def __getattr__(name: str) -> object:
    # Its base class is missing in builds without torch.distributed.
    if name == "DataParallel":
        from maskgrad.distributed.data_parallel import DataParallel

        return DataParallel
    raise AttributeError(f"module 'maskgrad.distributed' has no attribute {name!r}")
