"""The processes that share a table, and how rows travel between them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import Tensor

__all__ = ["Ranks"]


#: Dtypes that every backend has sent for years; others travel as bytes.
_KNOWN_TO_ALL = {torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}


class Ranks:
    """The processes of a group, seen from one of them; without an initialised group there is one.

    Args:
        group: a ``torch.distributed`` process group; None: the default one.

    Attributes:
        size: how many there are.
        rank: this one, counted in the group.
    """

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        self.group = group
        self.size, self.rank = 1, 0
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.size, self.rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        if self.rank < 0:
            raise ValueError(
                "process_group does not contain this process; make the table on the members of the group only"
            )
        self._meshes: dict[str, Any] = {}
        self._point_to_point = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self  # a copied table lives on the same processes

    def __reduce__(self) -> Any:
        if self.group is not None:
            raise TypeError(
                "a table sharded over a process group of its own cannot be pickled: the group exists in these "
                "processes only. Save its state_dict() with torch.distributed.checkpoint"
            )
        return (_same_number_of_ranks, (self.size, self.rank))

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """All-to-all: the first ``sent[0]`` of ``rows`` (n, *row) go to rank 0, and so on.

        Returns:
            (sum(received), *row): what arrives, by rank; ``received`` is known beforehand.

        Raises:
            RuntimeError: another rank has ended, or takes part in something else.
        """
        if self.size == 1:
            return rows
        if rows.dtype not in _KNOWN_TO_ALL:
            as_bytes = rows.contiguous().unsqueeze(-1).view(torch.uint8)
            return self.exchange(as_bytes, sent, received).view(rows.dtype).squeeze(-1)
        arrived = rows.new_empty((sum(received), *rows.shape[1:]))
        rows = rows.contiguous()
        try:
            self._exchange(arrived, rows, sent, received)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.size} could not exchange rows of a sharded table. Another rank has ended, "
                "or not all ranks look the same tables up, and call backward(), in the same order; an empty batch "
                f"takes part like any other. The process group says: {error}"
            ) from error
        return arrived

    def _exchange(self, arrived: Tensor, rows: Tensor, sent: list[int], received: list[int]) -> None:
        if not self._point_to_point:
            try:
                torch.distributed.all_to_all_single(arrived, rows, received, sent, group=self.group)
            except (RuntimeError, NotImplementedError) as error:
                # A backend without all-to-all says so at once, on every rank.
                if not any(phrase in str(error).lower() for phrase in ("not support", "not implemented")):
                    raise
                self._point_to_point = True
            else:
                return
        wanted, offered = arrived.split(received), rows.split(sent)
        wanted[self.rank].copy_(offered[self.rank])
        operations = []
        for peer in range(self.size):
            if peer != self.rank and sent[peer]:
                operations.append(self._message(torch.distributed.isend, offered[peer], peer))
            if peer != self.rank and received[peer]:
                operations.append(self._message(torch.distributed.irecv, wanted[peer], peer))
        for work in torch.distributed.batch_isend_irecv(operations) if operations else ():
            work.wait()

    def _message(self, operation: Any, part: Tensor, peer: int) -> torch.distributed.P2POp:
        return torch.distributed.P2POp(operation, part, group=self.group, group_peer=peer)

    def gather(self, rows: Tensor, counts: list[int]) -> Tensor:
        """(sum(counts), *row): the rows of all ranks, on each of them; rank r has ``counts[r]``."""
        if self.size == 1:
            return rows
        longest = rows.new_zeros((max(counts), *rows.shape[1:]))
        longest[: len(rows)] = rows
        gathered = [torch.empty_like(longest) for _ in counts]
        torch.distributed.all_gather(gathered, longest, group=self.group)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    def mesh(self, device: torch.device) -> Any:
        """The ranks as a DeviceMesh, which DTensor asks for."""
        from torch.distributed.device_mesh import DeviceMesh

        if device.type not in self._meshes:
            group: Any = self.group if self.group is not None else torch.distributed.group.WORLD
            self._meshes[device.type] = DeviceMesh.from_group(group, device.type)
        return self._meshes[device.type]


def _same_number_of_ranks(size: int, rank: int) -> Ranks:
    ranks = Ranks()
    if (ranks.size, ranks.rank) != (size, rank):
        raise ValueError(
            f"a table pickled on rank {rank} of {size} is unpickled on rank {ranks.rank} of {ranks.size}; load its "
            "state_dict() with torch.distributed.checkpoint, which fits any number of ranks"
        )
    return ranks
