"""Training on several processes: gradients, losses and statistics as one process on the whole batch would have them."""

from __future__ import annotations

from maskgrad.distributed.all_reduce import AllReduce, all_reduce
from maskgrad.distributed.gradients import all_reduce_gradients
from maskgrad.distributed.sharding import (
    ShardedEmbedding,
    ShardedEmbeddingBag,
    ShardedTables,
    is_sharded,
    load_checkpoint,
    load_optimizer_state_dict,
    optimizer_state_dict,
    save_checkpoint,
    spread_tables,
)

__all__ = [
    "AllReduce",
    "ShardedEmbedding",
    "ShardedEmbeddingBag",
    "ShardedTables",
    "all_reduce",
    "all_reduce_gradients",
    "is_sharded",
    "load_checkpoint",
    "load_optimizer_state_dict",
    "optimizer_state_dict",
    "save_checkpoint",
    "spread_tables",
]
