"""Processes of one group, for tests: started once per number of ranks, kept for all tests that need so many.

    from tests.ranks import run_on_ranks

    def program(rank: int, world_size: int, scale: float) -> float:   # at the top of its file: processes import it
        x = torch.full((2,), scale * rank)
        torch.distributed.all_reduce(x)
        return x.sum().item()

    assert run_on_ranks(program, 2, 3.0) == [6.0, 6.0]

A program runs on every rank in an initialised gloo group and returns what pickle can carry. If it fails on some rank
the test fails with that rank's traceback, and the processes are started afresh for the next test: after a failure the
ranks may have different ideas of what was sent. `outcomes_on_fresh_ranks` is for programs that fail on purpose.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GROUP_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 180.0


def _context() -> multiprocessing.context.BaseContext:
    """Processes forked from a server that has imported PyTorch once, where each would for seconds; or spawned."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # on Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "maskgrad", "pytest"])
    return context


@dataclass(frozen=True)
class Failure:
    """What went wrong on a rank; `died` if its process ended without an answer."""

    rank: int
    text: str
    died: bool = False


class Ranks:
    """`world_size` processes in one gloo group."""

    def __init__(self, world_size: int, group_timeout_s: float = GROUP_TIMEOUT_S) -> None:
        context = _context()
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.pipes: list[multiprocessing.connection.Connection] = []
        self.processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, rank, world_size, str(Path(self.folder.name) / "store"), group_timeout_s),
                daemon=True,
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(
        self, program: Callable[..., Any], *arguments: Any, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> list[Any]:
        """Each rank's result, or a `Failure` in its place."""
        for pipe in self.pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send((program, arguments))
        return [self._answer(rank, timeout_s) for rank in range(len(self.pipes))]

    def _answer(self, rank: int, timeout_s: float) -> Any:
        pipe = self.pipes[rank]
        try:
            if not pipe.poll(timeout_s):
                return Failure(rank, f"no answer within {timeout_s} s", died=True)
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join(5)
            return Failure(
                rank, f"its process ended with exit code {self.processes[rank].exitcode}", died=True
            )

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


_kept: dict[int, Ranks] = {}


def run_on_ranks(
    program: Callable[..., Any], world_size: int, *arguments: Any, timeout_s: float = ANSWER_TIMEOUT_S
) -> list[Any]:
    """What `program(rank, world_size, *arguments)` returns on each rank; fails the test if one of them raises."""
    if world_size not in _kept:
        _kept[world_size] = Ranks(world_size)
    results = _kept[world_size].run(program, *arguments, timeout_s=timeout_s)
    failures = [result for result in results if isinstance(result, Failure)]
    if failures:
        _kept.pop(world_size).stop()
        pytest.fail("\n".join(f"rank {f.rank}: {f.text}" for f in failures), pytrace=False)
    return results


def outcomes_on_fresh_ranks(
    program: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    group_timeout_s: float = 10.0,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> list[Any]:
    """As `run_on_ranks` in processes of their own, with a `Failure` for each rank that raises or dies."""
    ranks = Ranks(world_size, group_timeout_s)
    try:
        return ranks.run(program, *arguments, timeout_s=timeout_s)
    finally:
        ranks.stop()


def exit_code_of(program: Callable[..., Any], *arguments: Any) -> int | None:
    """What a process ends with that runs `program`; it has imported maskgrad, and done nothing else."""
    process = _context().Process(target=program, args=arguments)
    process.start()
    process.join(ANSWER_TIMEOUT_S)
    return process.exitcode


@atexit.register
def _stop_all() -> None:
    for ranks in _kept.values():
        ranks.stop()


def _serve(
    pipe: multiprocessing.connection.Connection,
    rank: int,
    world_size: int,
    store: str,
    group_timeout_s: float,
) -> None:
    """What runs in a process: programs from the pipe, one after the other, until the pipe closes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=group_timeout_s),
    )
    while True:
        try:
            program, arguments = pipe.recv()
        except EOFError:
            break
        torch.manual_seed(0)
        try:
            answer = program(rank, world_size, *arguments)
        except Exception as error:
            answer = Failure(rank, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        pipe.send(answer)
    os._exit(0)
