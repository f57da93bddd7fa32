"""The ranks of a process group, and the plain collectives that all exchanges use.

Only collectives of all backends are used: ``all_gather`` of equal sizes, ``all_reduce`` of sums in
dtypes that all backends support, and ``broadcast``. Half precision is never sent: gloo cannot add all of it, and a
failed exchange would poison the group.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import LostRankError

__all__ = ["ProcessGroup", "as_bytes", "from_bytes"]

#: Dtypes that every backend can sum; others are sent in a wider one.
_SUMMABLE = (torch.int32, torch.int64, torch.float32, torch.float64, torch.complex64, torch.complex128)


def _require_distributed(what: str) -> None:
    if not torch.distributed.is_available():
        raise RuntimeError(
            f"{what} needs torch.distributed, missing in this build of PyTorch (torch.distributed.is_available() is "
            "False); install a build with it. A single process does not need it"
        )
    if not torch.distributed.is_initialized():
        raise RuntimeError(
            f"{what} needs an initialized process group; call "
            "torch.distributed.init_process_group(...) first, for example in a program started with torchrun"
        )


class ProcessGroup:
    """The ranks of a ``torch.distributed`` group, on one of them.

    A collective waits for its result, unless it gets a list ``works``, to which it is appended for :meth:`wait`.

    Args:
        group: a process group; None: the default one.
        what: the caller, for error messages.
        or_alone: without an initialized default group there is one rank, instead of a RuntimeError.

    Attributes:
        size: number of ranks.
        rank: index of this one in the group.
        device: device of small messages, from which the backend can send.
    """

    def __init__(self, group: Any, what: str, *, or_alone: bool = False) -> None:
        self.group, self.what, self.size, self.rank = group, what, 1, 0
        self.device = torch.device("cpu")
        self._kinds = {"cpu"}
        available = torch.distributed.is_available() and torch.distributed.is_initialized()
        if or_alone and not available:
            return
        _require_distributed(what)
        self.size = torch.distributed.get_world_size(group)
        self.rank = torch.distributed.get_rank(group)
        if self.rank < 0:
            raise ValueError(
                f"{what}: this process is not in the process group; call it on the members of the group only"
            )
        backends = str(torch.distributed.get_backend_config(group)).lower()
        self._kinds = {part.partition(":")[0] for part in backends.split(",")}
        if "cpu" not in self._kinds:
            self.device = _accelerator(self._kinds)

    def timeout(self) -> datetime.timedelta | None:
        """Timeout of the group; None if this PyTorch does not provide it."""
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
        """Explain the error of a failed collective."""
        try:
            yield
        except LostRankError:
            raise
        except RuntimeError as error:
            raise LostRankError(
                f"{self.what}: the exchange failed on rank {self.rank} of {self.size}. Another rank has ended, did "
                "not respond within the group's timeout, or takes part in another exchange: all ranks call the same "
                "functions in the same order, also with an empty batch. The tensors to be exchanged "
                "are unchanged on this rank. The group cannot be used any more: restart all ranks. The process "
                f"group says: {error}"
            ) from error

    def wait(self, works: list[Any]) -> None:
        """Wait for pending collectives."""
        with self.explained():
            for work in works:
                if work is not None:
                    work.wait()
        works.clear()

    def _start(self, works: list[Any] | None, collective: Any, *arguments: Any) -> None:
        with self.explained():
            work = collective(*arguments, group=self.group, async_op=True)
        if works is None:
            self.wait([work])
        else:
            works.append(work)

    def gather(self, part: Tensor, works: list[Any] | None = None) -> Tensor:
        """Gather ``part``, of the same shape and dtype on all ranks, as (W, *shape)."""
        part = part.contiguous()
        gathered = torch.empty((self.size, *part.shape), dtype=part.dtype, device=part.device)
        if self.size == 1 or not part.numel():
            gathered[...] = part
        else:
            self._start(works, torch.distributed.all_gather, list(gathered.unbind(0)), part)
        return gathered

    def add(self, values: Tensor, works: list[Any] | None = None) -> None:
        """Replace ``values``, of a dtype from :meth:`summable`, by the sum over the ranks."""
        if self.size > 1 and values.numel():
            self._start(works, torch.distributed.all_reduce, values, torch.distributed.ReduceOp.SUM)

    def send_from_first(self, values: Tensor, works: list[Any] | None = None) -> None:
        """Replace contiguous ``values`` by those of rank 0 on every other rank."""
        if self.size > 1 and values.numel():
            root = torch.distributed.get_global_rank(self.group, 0) if self.group is not None else 0
            self._start(works, torch.distributed.broadcast, values, root)

    @staticmethod
    def summable(dtype: torch.dtype) -> torch.dtype:
        """Dtype in which ``dtype`` is summed: float32 for half precision, int64 for small integers and Booleans."""
        if dtype in _SUMMABLE:
            return dtype
        if dtype.is_floating_point or dtype.is_complex:
            return torch.promote_types(dtype, torch.float32)
        return torch.int64

    def gather_texts(self, text: str) -> list[str]:
        """Gather the string of each rank."""
        message = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        lengths = self.gather(torch.tensor(len(message), device=self.device)).tolist()
        padded = torch.nn.functional.pad(message, (0, max(lengths) - len(message)))
        rows = self.gather(padded).tolist()
        return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def _accelerator(kinds: set[str]) -> torch.device:
    for kind in sorted(kinds):
        module = getattr(torch, kind, None)
        if module is not None and hasattr(module, "current_device"):
            return torch.device(kind, module.current_device())
    return torch.device("cpu")


def as_bytes(values: Tensor) -> Tensor:
    """The memory of ``values`` as (n,) uint8, n a multiple of 16, so that any dtype can follow."""
    plain = values.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    if plain.is_complex():
        plain = torch.view_as_real(plain).view(-1)
    data = plain.view(torch.uint8)
    return torch.nn.functional.pad(data, (0, -len(data) % 16))


def from_bytes(data: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the tensor at the beginning of ``data``, from :func:`as_bytes`, and the rest of ``data``."""
    length = math.prod(shape) * dtype.itemsize
    if not length:
        return torch.empty(shape, dtype=dtype, device=data.device), data
    return data[:length].view(dtype).view(shape), data[length + -length % 16 :]
