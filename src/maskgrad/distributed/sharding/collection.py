"""Several sharded tables with one exchange for all lookups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.sharding.embedding import ShardedEmbedding, ShardedEmbeddingBag
from maskgrad.distributed.sharding.look_up import look_up
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["ShardedTables", "spread_tables"]


class ShardedTables(torch.nn.Module):
    """Several sharded tables; a lookup in any number of them sends as many messages as in one.

    Args:
        tables: names, and :class:`ShardedEmbedding` or :class:`ShardedEmbeddingBag`; all on the same ranks, and with
            the same ``gradients``. Rows of a table may lie on many ranks (``placement="block"``), or a table on one
            (:func:`spread_tables` selects the ranks).

    Shapes: ``forward`` takes a dictionary: for each name the indices, or a tuple of all arguments of a bag; and returns
    a dictionary of the results. Tables that are not named are not looked up, on any rank.

    Gradient:
        As each table's own; none for tables whose result is not used.

    Raises:
        TypeError: a table of another type.
        ValueError: no tables, tables on different ranks, or with different ``gradients``; in a lookup, an unknown
            name, on every rank, as all errors of a lookup.

    Dense equivalent: ``torch.nn.ModuleDict`` of embeddings.

    Example:
        >>> where = mg.distributed.spread_tables({"user": 8 * 2, "film": 5 * 2})  # one process: rank 0 has both
        >>> tables = mg.distributed.ShardedTables({
        ...     "user": mg.distributed.ShardedEmbedding(8, 2, placement=where["user"]),
        ...     "film": mg.distributed.ShardedEmbeddingBag(5, 2, placement=where["film"]),
        ... })
        >>> found = tables({"user": torch.tensor([7]), "film": (torch.tensor([1, 2, 2]), torch.tensor([0]))})
        >>> found["user"].shape, found["film"].shape
        (torch.Size([1, 2]), torch.Size([1, 2]))

    Source: ``EmbeddingCollection`` of TorchRec.
    """

    def __init__(self, tables: Mapping[str, ShardedEmbedding | ShardedEmbeddingBag]) -> None:
        super().__init__()
        for name, table in tables.items():
            if not isinstance(table, ShardedEmbedding | ShardedEmbeddingBag):
                raise TypeError(
                    f"tables[{name!r}] must be a ShardedEmbedding or a ShardedEmbeddingBag, got {type(table).__name__}"
                )
        if not tables:
            raise ValueError("tables must contain at least one table, got none")
        first_name, first = next(iter(tables.items()))
        for name, table in tables.items():
            if table.ranks.group is not first.ranks.group or table.gradients != first.gradients:
                raise ValueError(
                    f"tables[{name!r}] and tables[{first_name!r}] differ in process_group or gradients "
                    f"({table.gradients!r} and {first.gradients!r}); tables that are looked up together must share both"
                )
        self.tables = torch.nn.ModuleDict(tables)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, inputs: Mapping[str, Any]) -> dict[str, Tensor | MaskedTensor]:
        """Look up in every table in ``inputs``; with the same names on every rank."""
        arguments = {name: given if isinstance(given, tuple) else (given,) for name, given in inputs.items()}
        # One order on all ranks, whatever that of the dictionary.
        names = [name for name in self.tables if name in arguments]
        named: list[Any] = [self.tables[name] for name in names]
        error = self._error(arguments, names)
        if error is not None:
            named = named or [next(iter(self.tables.values()))]
        indices = [arguments[name][0] for name in names if arguments[name]]
        found = look_up(named, indices, error=error, what=type(self).__name__)
        return {
            name: table.result(*answer, *arguments[name])
            for name, table, answer in zip(names, named, found, strict=True)
        }

    def _error(self, arguments: Mapping[str, tuple[Any, ...]], names: list[str]) -> Exception | None:
        strangers = [name for name in arguments if name not in self.tables]
        if strangers or not names:
            given = repr(strangers[0]) if strangers else "no table"
            return ValueError(f"inputs contains {given}; the tables are {', '.join(map(repr, self.tables))}")
        for name in names:
            table: Any = self.tables[name]
            most = 3 if isinstance(table, ShardedEmbeddingBag) else 1
            number = len(arguments[name])
            if not 1 <= number <= most:
                return TypeError(
                    f"inputs[{name!r}] must be indices, or a tuple of at most {most} arguments; got {number}"
                )
            if most > 1:
                error: Exception | None = table.error(*arguments[name])
                if error is not None:
                    return error
        return None


def spread_tables(
    sizes: Mapping[str, int], process_group: torch.distributed.ProcessGroup | None = None
) -> dict[str, int]:
    """Return the rank for each table to balance sizes: the largest first, to the rank with least.

    Args:
        sizes: the number of entries of each table, or another size to be balanced, by name.
        process_group: the ranks; None: all of them, or this process only.

    Returns:
        For each name the index of a rank: the argument ``placement`` of a sharded table.

    Dense equivalent: nothing; in one process all tables are on rank 0.

    Example:
        >>> mg.distributed.spread_tables({"user": 100, "film": 20})
        {'user': 0, 'film': 0}

    Source: R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969: at most 4/3 of the best.
    """
    burden = [0] * ProcessGroup(process_group, "spread_tables", or_alone=True).size
    found = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        found[name] = burden.index(min(burden))
        burden[found[name]] += sizes[name]
    return {name: found[name] for name in sizes}
