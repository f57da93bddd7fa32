"""State dictionaries of models and optimizers in which sharded tables are parts of the whole.

Other parameters are the same on every rank, and plain tensors here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.sharding.stored_shards import shard_of_loaded, shard_to_save
from maskgrad.distributed.sharding.table import ShardedTable

__all__ = ["load_optimizer_state_dict", "optimizer_state_dict", "sharded_tables"]

_GROUPS = "param_groups"


def sharded_tables(model: torch.nn.Module) -> dict[str, ShardedTable]:
    """The sharded tables of a model by the names of their weights."""
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if isinstance(module, ShardedTable)
    }


def optimizer_state_dict(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer for ``torch.distributed.checkpoint``: flat, by names, tables as parts of the whole.

    Rows that are behind (``unspecified="zero"``) are brought up to date first, as by ``optimizer.state_dict()``.

    Args:
        model: names the parameters.
        optimizer: of ``mg.optim`` or ``torch.optim``; every parameter of it is one of the model's.

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

    Source: ``torch.distributed.checkpoint.state_dict``, which takes a plain shard for a replica.
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
                continue  # the rank that has the rows also has the number of steps
            for key, value in saved["state"].get(number, {}).items():
                stored = value
                if name in tables and _has_rows(value, param):
                    stored = shard_to_save(value, tables[name].placement, tables[name].ranks)
                flat[f"state.{name}.{key}"] = stored
    flat[_GROUPS] = groups
    return flat


def load_optimizer_state_dict(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Give an optimizer the state that :func:`optimizer_state_dict` has, of this or another number of ranks.

    Args:
        model: names the parameters.
        optimizer: of the same kind, on the same parameters in as many groups.
        state: as ``torch.distributed.checkpoint.load`` fills it.

    Raises:
        ValueError: groups or names that are not the optimizer's, or a state that does not fit; nothing has been
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
            "it on the same parameters in the same order"
        )
    numbers: Iterator[int] = iter(range(sum(map(len, own))))
    loaded: dict[str, Any] = {"state": {}, _GROUPS: []}
    for group, live_group in zip(groups, live, strict=True):
        order = []
        for name, param in zip(group["params"], live_group["params"], strict=True):
            order.append(next(numbers))
            prefix = f"state.{name}."
            entry = {
                key.removeprefix(prefix): _own_part(value, param, tables.get(name), key)
                for key, value in state.items()
                if key.startswith(prefix) and "." not in key.removeprefix(prefix)
            }
            elsewhere = name in tables and tables[name].placement.lies_elsewhere
            if entry and not elsewhere:
                loaded["state"][order[-1]] = entry
        loaded[_GROUPS].append({**group, "params": order})
    optimizer.load_state_dict(loaded)


def _own_part(value: Any, param: Tensor, table: ShardedTable | None, key: str) -> Any:
    if table is None or not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if not table.placement.is_split:
        return value
    leading = len(table.placement.grid(()))
    shard = torch.empty(len(param), *value.shape[leading:], device="meta")
    part = shard_of_loaded(value, shard, table.placement)
    if part is None:
        raise ValueError(
            f"{key} has shape {tuple(value.shape)}, which is not that of a table of {table.num_embeddings} rows"
        )
    return part


def _has_rows(value: Any, param: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == param.shape[0]


def _names(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    names = {id(param): name for name, param in model.named_parameters()}
    for position, group in enumerate(optimizer.param_groups):
        for number, param in enumerate(group["params"]):
            if id(param) not in names:
                raise ValueError(
                    f"parameter {number} of group {position} of the optimizer is not a parameter of the model; give "
                    "the model that the optimizer was made for"
                )
    return names
