"""The ranks that work together, as everything here sees them, and the plain collectives that everything is made of.

Only collectives that every backend has are used: ``all_gather`` of equal sizes, ``all_reduce`` of sums and maxima in
dtypes that all backends know, and ``broadcast``. Half precision never travels: gloo cannot add all of it, and a failed
exchange would poison the group.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import LostRankError

__all__ = ["ProcessGroup", "as_bytes", "from_bytes", "require_distributed"]

#: Dtypes that every backend can add up; others travel in a wider one.
_SUMMABLE = (torch.int32, torch.int64, torch.float32, torch.float64, torch.complex64, torch.complex128)


def require_distributed(what: str) -> None:
    """RuntimeError, in the words of ``what`` was called, where there is no process group to talk to."""
    if not torch.distributed.is_available():
        raise RuntimeError(
            f"{what} needs torch.distributed, which this build of PyTorch lacks (torch.distributed.is_available() is "
            "False); install a build that has it. A single process needs none of it"
        )
    if not torch.distributed.is_initialized():
        raise RuntimeError(
            f"{what} needs an initialised process group, and there is none; call "
            "torch.distributed.init_process_group(...) first, in a program started with torchrun, say"
        )


class ProcessGroup:
    """The ranks of a ``torch.distributed`` group, seen from one of them.

    Args:
        group: a process group; None: the default one.
        what: who asks, for error messages.

    Attributes:
        size: how many ranks there are.
        rank: this one, counted in the group.
        device: where small messages live: a device that the backend can send from.

    Raises:
        RuntimeError: ``torch.distributed`` is absent or not initialised.
        ValueError: this process is not in the group.
    """

    def __init__(self, group: Any, what: str) -> None:
        require_distributed(what)
        self.group, self.what = group, what
        self.size = torch.distributed.get_world_size(group)
        self.rank = torch.distributed.get_rank(group)
        if self.rank < 0:
            raise ValueError(
                f"{what}: this process is not in group; call it on the members of the group only"
            )
        backends = str(torch.distributed.get_backend_config(group)).lower()
        self._kinds = {part.partition(":")[0] for part in backends.split(",")}
        self.device = torch.device("cpu") if "cpu" in self._kinds else _accelerator(self._kinds)

    def timeout(self) -> datetime.timedelta | None:
        """For how long the group waits for a rank; None if this PyTorch does not say."""
        group: Any = self.group if self.group is not None else torch.distributed.group.WORLD
        try:
            found = group._get_backend(self.device).options._timeout
        except (AttributeError, RuntimeError):
            return None
        return found if isinstance(found, datetime.timedelta) else None

    def transport(self, device: torch.device) -> torch.device:
        """The device from which tensors on ``device`` are sent."""
        return device if device.type in self._kinds else self.device

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Say in the error of a failed collective what it means for the caller."""
        try:
            yield
        except LostRankError:
            raise
        except RuntimeError as error:
            raise LostRankError(
                f"{self.what}: the exchange failed on rank {self.rank} of {self.size}. Another rank has ended, has "
                "not come within the group's timeout, or takes part in something else; what was to be exchanged is "
                f"unchanged here. The group cannot be used any more: start all ranks again. It says: {error}"
            ) from error

    def wait(self, works: list[Any]) -> None:
        """Wait for collectives under way."""
        with self.explained():
            for work in works:
                if work is not None:
                    work.wait()
        works.clear()

    def gather(self, part: Tensor, works: list[Any]) -> Tensor:
        """``part``, of the same shape and dtype on all ranks, of each of them: (W, *shape), once ``works`` are done."""
        part = part.contiguous()
        gathered = torch.empty((self.size, *part.shape), dtype=part.dtype, device=part.device)
        if self.size == 1 or not part.numel():
            gathered[...] = part
            return gathered
        with self.explained():
            rows = list(gathered.unbind(0))
            works.append(torch.distributed.all_gather(rows, part, group=self.group, async_op=True))
        return gathered

    def add(self, values: Tensor, works: list[Any]) -> None:
        """Put the sum over the ranks in the place of ``values``, of a dtype that :meth:`summable` gave."""
        self._reduce(values, torch.distributed.ReduceOp.SUM, works)

    def largest(self, values: Tensor, works: list[Any]) -> None:
        """Put the maximum over the ranks in the place of ``values`` (integers)."""
        self._reduce(values, torch.distributed.ReduceOp.MAX, works)

    def _reduce(self, values: Tensor, op: Any, works: list[Any]) -> None:
        if self.size > 1 and values.numel():
            with self.explained():
                works.append(torch.distributed.all_reduce(values, op, group=self.group, async_op=True))

    def send_from(self, rank: int, values: Tensor, works: list[Any]) -> None:
        """Put what ``rank`` has in the place of ``values``, which are contiguous, on every other rank."""
        if self.size > 1 and values.numel():
            root = torch.distributed.get_global_rank(self.group, rank) if self.group is not None else rank
            with self.explained():
                works.append(torch.distributed.broadcast(values, root, group=self.group, async_op=True))

    @staticmethod
    def summable(dtype: torch.dtype) -> torch.dtype:
        """The dtype in which ``dtype`` is added up: float32 for halves, int64 for small integers and Booleans."""
        if dtype in _SUMMABLE:
            return dtype
        if dtype.is_floating_point or dtype.is_complex:
            return torch.promote_types(dtype, torch.float32)
        return torch.int64

    def gather_texts(self, text: str) -> list[str]:
        """What each rank says. Waits."""
        message = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        works: list[Any] = []
        lengths = self.gather(torch.tensor([len(message)], device=self.device), works)
        self.wait(works)
        longest = torch.zeros(int(lengths.max()), dtype=torch.uint8, device=self.device)
        longest[: len(message)] = message
        told = self.gather(longest, works)
        self.wait(works)
        return [
            bytes(row[: int(length)].tolist()).decode() for row, length in zip(told, lengths, strict=True)
        ]


def _accelerator(kinds: set[str]) -> torch.device:
    for kind in sorted(kinds):
        module = getattr(torch, kind, None)
        if module is not None and hasattr(module, "current_device"):
            return torch.device(kind, module.current_device())
    return torch.device("cpu")


def as_bytes(values: Tensor) -> Tensor:
    """The memory of ``values`` as (n,) uint8, n a multiple of 16, so that any dtype may follow."""
    plain = values.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    if plain.is_complex():
        plain = torch.view_as_real(plain).view(-1)
    data = plain.view(torch.uint8)
    return torch.nn.functional.pad(data, (0, -len(data) % 16))


def from_bytes(data: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The tensor that :func:`as_bytes` turned into the beginning of ``data``, and the rest of ``data``."""
    number = 1
    for size in shape:
        number *= size
    length = number * dtype.itemsize
    if not length:
        return torch.empty(shape, dtype=dtype, device=data.device), data
    return data[:length].view(dtype).view(shape), data[length + -length % 16 :]
