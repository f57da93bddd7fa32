"""Training on several processes of this machine, each of which takes a part of every batch.

The process that was started is the first of them. It alone shows progress and writes the report; the others are told
what to do, and end with it.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import nn

import maskgrad as mg

__all__ = ["ALONE", "Share", "together"]

_SECONDS_TO_END = 10.0
_PATIENCE = datetime.timedelta(minutes=5)  # with a process that does not come


@dataclass(frozen=True)
class Share:
    """Which part of every batch is this process's.

    Attributes:
        rank: number of this process.
        processes: how many there are.
    """

    rank: int
    processes: int

    def part(self, length: int) -> slice:
        """Of a batch of ``length`` samples; perhaps empty."""
        return slice(length * self.rank // self.processes, length * (self.rank + 1) // self.processes)

    def losses(self) -> contextlib.AbstractContextManager[None]:
        """Within, a loss is that of the joint batch."""
        return mg.distributed.global_losses() if self.processes > 1 else contextlib.nullcontext()

    def average_gradients(self, module: nn.Module) -> None:
        """After ``backward()``: all processes get the gradients of the joint batch."""
        if self.processes > 1:
            mg.distributed.all_reduce_gradients(module)


ALONE = Share(0, 1)


@contextlib.contextmanager
def together(processes: int, work: Callable[..., None], *arguments: Any) -> Iterator[Share]:
    """Run ``work(share, *arguments)`` in the other processes while the block does the same in this one.

    They end with the block; at once, if it ends by an error or Ctrl-C.

    Args:
        processes: how many in all; with 1 there are no others.
        work: a function that a new Python can import.
        arguments: what pickle can carry.
    """
    if processes == 1:
        yield ALONE
        return
    with tempfile.TemporaryDirectory() as folder, _local_connections():
        meeting_point = (Path(folder) / "store").as_uri()
        context = multiprocessing.get_context("spawn")
        others: list[Any] = []
        signs: list[Connection] = []
        finished = False
        try:
            for rank in range(1, processes):
                sign, send = context.Pipe(duplex=False)
                process = context.Process(
                    target=_work,
                    args=(Share(rank, processes), send, meeting_point, work, arguments),
                    daemon=True,
                )
                others.append(process)
                signs.append(sign)
                process.start()
                send.close()
            _wait_for_signs_of_life(others, signs)
            _meet(ALONE.rank, processes, meeting_point)
            yield Share(ALONE.rank, processes)
            finished = True
        finally:
            for process in others:
                if finished:
                    process.join(_SECONDS_TO_END)
                if process.pid is not None and process.is_alive():
                    process.terminate()
                    process.join()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def _work(
    share: Share, sign: Connection, meeting_point: str, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    # Ctrl-C reaches all processes of a terminal; the first one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sign.send(True)
    _meet(share.rank, share.processes, meeting_point)
    work(share, *arguments)
    torch.distributed.destroy_process_group()


def _wait_for_signs_of_life(processes: list[Any], signs: list[Connection]) -> None:
    """Nobody waits for a process that did not even begin."""
    for rank, (process, sign) in enumerate(zip(processes, signs, strict=True), 1):
        wait([sign, process.sentinel])
        try:
            sign.recv()
        except EOFError:
            process.join()
            raise RuntimeError(
                f"process {rank} ended with exit code {process.exitcode} before it began; its message is above"
            ) from None


def _meet(rank: int, processes: int, meeting_point: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=meeting_point, rank=rank, world_size=processes, timeout=_PATIENCE
    )


@contextlib.contextmanager
def _local_connections() -> Iterator[None]:
    """Talk over the loopback device: the name of a machine does not always lead to it."""
    name = "GLOO_SOCKET_IFNAME"
    before = os.environ.get(name)
    if before is None and sys.platform == "linux":
        os.environ[name] = "lo"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
