"""Names that a version has removed, each with what to write instead; kept for one minor version."""

from __future__ import annotations

from maskgrad.other_names import instead_of_name

__all__ = ["REMOVED", "missing_attribute"]

_TORCHREC = "tables larger than one machine are TorchRec's: docs/how_do_i/large_tables.md has a program"

#: By module and name.
REMOVED = {
    "maskgrad.distributed": {
        "ShardedEmbedding": _TORCHREC,
        "ShardedEmbeddingBag": _TORCHREC,
        "ShardedTables": _TORCHREC,
        "spread_tables": _TORCHREC,
        "is_sharded": _TORCHREC,
        "clip_grad_norm_": "write mg.clip_grad_norm_(parameters, max_norm)",
        "save_checkpoint": "write torch.distributed.checkpoint.save(state_dict, checkpoint_id=folder)",
        "load_checkpoint": "write torch.distributed.checkpoint.load(state_dict, checkpoint_id=folder)",
        "optimizer_state_dict": (
            "write torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(model, optimizer)"
        ),
        "load_optimizer_state_dict": (
            "write torch.distributed.checkpoint.state_dict.set_optimizer_state_dict(model, optimizer, state)"
        ),
    },
}


def missing_attribute(module: str, name: str) -> AttributeError:
    """Create the error for ``module.name``, with what to write instead of a removed, foreign or misspelt name."""
    text = f"module {module!r} has no attribute {name!r}"
    instead = REMOVED.get(module, {}).get(name)
    if instead:
        return AttributeError(f"{text}: it was removed in version 0.3; {instead}")
    meant = instead_of_name(name) if module == "maskgrad" else ""
    return AttributeError(f"{text}; did you mean {meant}?" if meant else text)
