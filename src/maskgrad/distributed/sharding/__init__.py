"""Tables of rows that are spread over the memories of several processes."""

from __future__ import annotations

from maskgrad.distributed.sharding.checkpoint import (
    load_checkpoint,
    load_optimizer_state_dict,
    optimizer_state_dict,
    save_checkpoint,
)
from maskgrad.distributed.sharding.collection import ShardedTables, spread_tables
from maskgrad.distributed.sharding.embedding import ShardedEmbedding, ShardedEmbeddingBag
from maskgrad.distributed.sharding.shards import clip_grad_norm_, is_sharded

__all__ = [
    "ShardedEmbedding",
    "ShardedEmbeddingBag",
    "ShardedTables",
    "clip_grad_norm_",
    "is_sharded",
    "load_checkpoint",
    "load_optimizer_state_dict",
    "optimizer_state_dict",
    "save_checkpoint",
    "spread_tables",
]
