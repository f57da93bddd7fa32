"""Models with sharded tables, and their optimizers, on disk: written by some ranks, read by any number."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from maskgrad.distributed.sharding.state_dicts import (
    load_optimizer_state_dict,
    optimizer_state_dict,
    sharded_tables,
)
from maskgrad.distributed.sharding.stored_shards import shard_to_save

__all__ = ["load_checkpoint", "save_checkpoint"]

_MODEL, _OPTIMIZER = "model", "optimizer"


def save_checkpoint(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> None:
    """Write a model with sharded tables, and its optimizer, each rank its part; all ranks call it.

    Args:
        path: a folder that all ranks see; what is there already is replaced.
        model: parameters that are not sharded are written once.
        optimizer: of ``mg.optim`` or ``torch.optim``; its state is written with the rows it belongs to.
        process_group: the ranks; None: all of them, or this process alone.

    Raises:
        ValueError: a parameter of the optimizer is not in the model.

    Dense equivalent: ``torch.save((model.state_dict(), optimizer.state_dict()), path)``.

    Example:
        >>> import tempfile
        >>> table = mg.distributed.ShardedEmbedding(4, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mg.distributed.save_checkpoint(folder, table)
        ...     again = mg.distributed.ShardedEmbedding(4, 2)
        ...     mg.distributed.load_checkpoint(folder, again)
        >>> torch.equal(again.weight, table.weight)
        True

    Source: ``torch.distributed.checkpoint``; ``state_dict()`` and :func:`optimizer_state_dict` are what it is given.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    # The optimizer's first: it brings rows up to date.
    parts: dict[str, Any] = {} if optimizer is None else {_OPTIMIZER: optimizer_state_dict(model, optimizer)}
    parts[_MODEL] = model.state_dict()
    with _quietly() as alone:
        save(parts, storage_writer=FileSystemWriter(path), process_group=process_group, no_dist=alone)


def load_checkpoint(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> None:
    """Read what :func:`save_checkpoint` has written, perhaps on another number of ranks; all ranks call it.

    Args:
        path: the folder.
        model: made like the one that was saved; a sharded table has the same number of rows, and lies by ``"block"`` or
            on one rank if it did, or ``"cyclic"`` if it was.
        optimizer: of the same kind on the same parameters; it need not have made a step.
        process_group: the ranks; None: all of them, or this process alone.

    Raises:
        ValueError: names or shapes differ from the checkpoint's; nothing has been changed then.

    Dense equivalent: ``model.load_state_dict(…)``, ``optimizer.load_state_dict(…)``.

    Example: see :func:`save_checkpoint`.

    Source: ``torch.distributed.checkpoint``.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    written = FileSystemReader(path).read_metadata().state_dict_metadata
    parts: dict[str, Any] = {_MODEL: model.state_dict()}
    if optimizer is not None:
        parts[_OPTIMIZER] = _room_for_states(model, optimizer, written)
    _require_match(parts, written)
    with _quietly() as alone:
        load(parts, storage_reader=FileSystemReader(path), process_group=process_group, no_dist=alone)
    model.load_state_dict(parts[_MODEL])
    if optimizer is not None:
        load_optimizer_state_dict(model, optimizer, parts[_OPTIMIZER])


@contextlib.contextmanager
def _quietly() -> Iterator[bool]:
    """Whether there is no process group; without PyTorch's warnings that it assumes so, and that it overwrites."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected an existing checkpoint")
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _room_for_states(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, written: dict[str, Any]
) -> dict[str, Any]:
    """A state of the shapes that are in the checkpoint, to be filled; the optimizer need not have one."""
    room = {
        key: value for key, value in optimizer_state_dict(model, optimizer).items() if key == "param_groups"
    }
    tables, params = sharded_tables(model), dict(model.named_parameters())
    prefix = f"{_OPTIMIZER}.state."
    for key, entry in written.items():
        size = getattr(entry, "size", None)
        if not key.startswith(prefix) or size is None:
            continue
        name = key.removeprefix(prefix).rpartition(".")[0]
        table = tables.get(name)
        if name not in params or (table is not None and table.placement.lies_elsewhere):
            continue
        dtype = entry.properties.dtype
        stored: Any
        if table is None or not size:
            stored = torch.empty(size, dtype=dtype, device=params[name].device if size else "cpu")
        else:
            leading = len(table.placement.grid(()))
            local = torch.empty(len(params[name]), *size[leading:], dtype=dtype, device=params[name].device)
            stored = shard_to_save(local, table.placement, table.ranks)
        room[key.removeprefix(f"{_OPTIMIZER}.")] = stored
    return room


def _require_match(parts: dict[str, Any], written: dict[str, Any]) -> None:
    for part, entries in parts.items():
        for name, value in entries.items():
            if not isinstance(value, Tensor):
                continue
            found = written.get(f"{part}.{name}")
            if found is None:
                raise ValueError(f"the checkpoint has no {part}.{name}; it was written from another {part}")
            if tuple(found.size) != tuple(value.shape):
                raise ValueError(
                    f"{part}.{name} has shape {tuple(found.size)} in the checkpoint, {tuple(value.shape)} here; make "
                    "the tables with as many rows, and in the same placement (block or on one rank, or cyclic)"
                )
