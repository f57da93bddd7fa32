"""Checkpoints of models with sharded tables and their optimizers, for any number of ranks."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from maskgrad.distributed.sharding.placement import shard_of_loaded, shard_to_save
from maskgrad.distributed.sharding.table import ShardedTable

__all__ = ["load_checkpoint", "load_optimizer_state_dict", "optimizer_state_dict", "save_checkpoint"]

_GROUPS = "param_groups"


def sharded_tables(model: torch.nn.Module) -> dict[str, ShardedTable]:
    """Sharded tables of a model, by the names of their weights."""
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if isinstance(module, ShardedTable)
    }


def optimizer_state_dict(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer for ``torch.distributed.checkpoint``: flat, by names, with tables as DTensors.

    Pending updates of rows (``unspecified="zero"``) are applied first, as by ``optimizer.state_dict()``.

    Args:
        model: the model with the parameters.
        optimizer: of ``mg.optim`` or ``torch.optim``, on parameters of the model.

    Returns:
        ``"state.<parameter>.<name>"``: the tensors of each parameter's state, of sharded tables a DTensor that shares
        memory with the optimizer; ``"param_groups"``: hyperparameters, with the names of the parameters.

    Raises:
        ValueError: a parameter of the optimizer that is not in the model.

    Dense equivalent: ``torch.distributed.checkpoint.state_dict.get_optimizer_state_dict``.

    Example:
        >>> table = mg.distributed.ShardedEmbedding(4, 2)
        >>> optimizer = mg.optim.Adagrad(table.parameters(), lr=0.1, state="row")
        >>> mg.distributed.optimizer_state_dict(table, optimizer)["state.weight.sum"].shape
        torch.Size([4, 1])

    Source: ``torch.distributed.checkpoint.state_dict``, which treats a plain shard as a replica.
    """
    names = _names(model, optimizer)
    tables = sharded_tables(model)
    saved = optimizer.state_dict()
    flat: dict[str, Any] = {}
    groups = []
    for group, live in zip(saved[_GROUPS], optimizer.param_groups, strict=True):
        own = [names[id(param)] for param in live["params"]]
        groups.append({**group, "params": own})
        for number, name, param in zip(group["params"], own, live["params"], strict=True):
            if name in tables and tables[name].placement.lies_elsewhere:
                continue  # the rank with the rows also has the step count
            for key, value in saved["state"].get(number, {}).items():
                if name in tables and isinstance(value, Tensor) and value.shape[:1] == param.shape[:1]:
                    value = shard_to_save(value, tables[name].placement, tables[name].ranks)  # noqa: PLW2901
                flat[f"state.{name}.{key}"] = value
    flat[_GROUPS] = groups
    return flat


def load_optimizer_state_dict(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Load a state of :func:`optimizer_state_dict` into an optimizer, from any number of ranks.

    Args:
        model: the model with the parameters.
        optimizer: of the same class, on the same parameters and groups.
        state: as filled by ``torch.distributed.checkpoint.load``.

    Raises:
        ValueError: groups or names differ from the optimizer's, or a state does not fit; nothing is
            changed then.

    Dense equivalent: ``torch.distributed.checkpoint.state_dict.set_optimizer_state_dict``.

    Example:
        >>> table = mg.distributed.ShardedEmbedding(4, 2)
        >>> optimizer = mg.optim.Adam(table.parameters())
        >>> table(torch.tensor([1])).sum().backward()
        >>> optimizer.step()
        >>> again = mg.optim.Adam(table.parameters())
        >>> state = mg.distributed.optimizer_state_dict(table, optimizer)
        >>> mg.distributed.load_optimizer_state_dict(table, again, state)
        >>> again.state[table.weight]["step"]
        tensor(1.)

    Source: ``torch.distributed.checkpoint.state_dict``.
    """
    names = _names(model, optimizer)
    tables = sharded_tables(model)
    groups, live = state[_GROUPS], optimizer.param_groups
    own = [[names[id(param)] for param in group["params"]] for group in live]
    if [group["params"] for group in groups] != own:
        raise ValueError(
            f"state has the parameters {[group['params'] for group in groups]} by group, the optimizer has {own}; make "
            "it with the same parameters in the same order"
        )
    numbers = itertools.count()
    loaded: dict[str, Any] = {"state": {}, _GROUPS: []}
    for group, live_group in zip(groups, live, strict=True):
        order = [next(numbers) for _ in group["params"]]
        for number, name, param in zip(order, group["params"], live_group["params"], strict=True):
            prefix = f"state.{name}."
            entry = {
                key.removeprefix(prefix): _own_part(value, param, tables.get(name), key)
                for key, value in state.items()
                if key.startswith(prefix) and "." not in key.removeprefix(prefix)
            }
            if entry and not (name in tables and tables[name].placement.lies_elsewhere):
                loaded["state"][number] = entry
        loaded[_GROUPS].append({**group, "params": order})
    optimizer.load_state_dict(loaded)


def _own_part(value: Any, param: Tensor, table: ShardedTable | None, key: str) -> Any:
    is_tensor = isinstance(value, Tensor) and value.dim() > 0
    if table is None or not is_tensor or not table.placement.is_split:
        return value
    leading = len(table.placement.grid(()))
    shard = torch.empty(len(param), *value.shape[leading:], device="meta")
    part = shard_of_loaded(value, shard, table.placement)
    if part is None:
        raise ValueError(
            f"{key} has shape {tuple(value.shape)}, which does not fit a table of {table.num_embeddings} rows"
        )
    return part


def _names(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    names = {id(param): name for name, param in model.named_parameters()}
    for position, group in enumerate(optimizer.param_groups):
        for number, param in enumerate(group["params"]):
            if id(param) not in names:
                raise ValueError(
                    f"parameter {number} of group {position} of the optimizer is not a parameter of the model; pass "
                    "the model of the optimizer"
                )
    return names


_MODEL, _OPTIMIZER = "model", "optimizer"


def save_checkpoint(
    path: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> None:
    """Save a model with sharded tables, and its optimizer; every rank writes its part, and must call this.

    Args:
        path: a folder shared by all ranks; existing files are replaced.
        model: the model; parameters that are not sharded are written once.
        optimizer: of ``mg.optim`` or ``torch.optim``; its state is written with the rows.
        process_group: the ranks; None: all of them, or this process only.

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

    Source: ``torch.distributed.checkpoint``; ``state_dict()`` and :func:`optimizer_state_dict` provide the data.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    # The optimizer's first: it applies pending updates.
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
    """Load a checkpoint of :func:`save_checkpoint`, from any number of ranks; all ranks must call this.

    Args:
        path: the folder.
        model: a model like the saved one; a sharded table has the same number of rows, and is ``"cyclic"`` if it was,
            else ``"block"`` or on one rank.
        optimizer: of the same class on the same parameters; it need not have made a step.
        process_group: the ranks; None: all of them, or this process only.

    Raises:
        ValueError: names or shapes differ from the checkpoint's; nothing is changed then.

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
    """Context that tells whether there is no process group, without PyTorch's warnings about that and overwriting."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected an existing checkpoint")
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _room_for_states(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, written: dict[str, Any]
) -> dict[str, Any]:
    """A state to be filled, with the shapes of the checkpoint; the optimizer need not have one."""
    room: dict[str, Any] = {_GROUPS: optimizer_state_dict(model, optimizer)[_GROUPS]}
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
        if table is not None and size:
            size = (len(params[name]), *size[len(table.placement.grid(())) :])
        device = params[name].device if size else "cpu"
        stored: Any = torch.empty(size, dtype=entry.properties.dtype, device=device)
        if table is not None and size:
            stored = shard_to_save(stored, table.placement, table.ranks)
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
                    "tables with the same number of rows, and the same kind of placement (block or one rank, or cyclic)"
                )
