"""Cases in processes of their own, two at a time and each under a time limit: a crash or a loop costs one case."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

__all__ = ["in_processes"]


def in_processes(
    work: Callable[[Any], Iterable[dict[str, Any]]], items: Iterable[Any], *, limit: float, at_once: int = 2
) -> Iterator[tuple[Any, list[dict[str, Any]], str]]:
    """Each item with the rows that its work gave, and why it gave no more ("" if it is complete)."""
    context = mp.get_context("fork")
    waiting, running = list(items), dict[Connection, tuple[Any, Any, float, list[dict[str, Any]]]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            item = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, item, theirs), daemon=True)
            process.start()
            theirs.close()
            running[ours] = item, process, time.monotonic() + limit, []
        ready = wait(list(running), timeout=1)
        for connection, (item, process, end, rows) in list(running.items()):
            reason = None
            if connection in ready:
                try:
                    message = connection.recv()
                except EOFError:
                    message = f"the process ended with {process.exitcode}"
                if isinstance(message, dict):
                    rows.append(message)
                else:
                    reason = message
            elif time.monotonic() > end:
                process.kill()
                reason = f"more than {limit:g} s"
            if reason is not None:
                process.join(5)
                del running[connection]
                yield item, rows, reason


def _run(work: Callable[[Any], Iterable[dict[str, Any]]], item: Any, connection: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        for row in work(item):
            connection.send(row)
        connection.send("")
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
