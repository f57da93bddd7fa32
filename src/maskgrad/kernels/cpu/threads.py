"""Running compiled loops on PyTorch's own threads.

Two thread pools on the same cores get in each other's way: after a parallel operation, OpenMP's workers keep
their core busy for some milliseconds, waiting for the next one, and a second pool's workers then share that core
with them. Numba's pool is such a second pool (its wheel links another copy of OpenMP than PyTorch's), aborts the
process when it is entered after a fork, and in its fallback build when two threads enter it at once. So Numba only
compiles; the loops run as one parallel region of the OpenMP library that PyTorch itself uses. Where that library
has no such entry point (macOS, Windows), Python threads run the loops, which release the GIL.

Starting a region from Python costs some 0.1 ms, so loops below ``SERIAL`` elements stay on the calling thread.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

SERIAL = 400_000  # elements; below, one thread is faster than starting two
#: Entries that are only summed or copied are this many times cheaper than those of other loops. 819,200 of them are
#: summed by column in 0.14 ms on one thread, and in 0.24 on two.
LIGHT = 4
_TASKS_PER_THREAD = 4  # assigned as threads become free: a slow core delays the end by one piece only
_PROCESS = os.getpid()


def run(loop: Callable[..., Any], *arguments: Any, tasks: int, elements: int) -> None:
    """Call ``loop(*arguments, lo, hi)`` on pieces ``[lo, hi)`` that cover ``range(tasks)``, in parallel if it pays.

    ``elements`` is the number of entries read or written by all tasks together. Which thread runs which piece is left
    open, so a task must write only its own results.
    """
    threads = min(torch.get_num_threads(), tasks)
    # OpenMP does not survive a fork: in a forked child (a DataLoader worker) one thread does all.
    if threads < 2 or elements < SERIAL or os.getpid() != _PROCESS:
        loop(*arguments, 0, tasks)
        return
    pieces = min(tasks, threads * _TASKS_PER_THREAD)
    bounds = [tasks * i // pieces for i in range(pieces + 1)]
    queue = iter(list(itertools.pairwise(bounds)))  # next() on a list's iterator is atomic
    failures: list[BaseException] = []

    def work(_: object = None) -> None:
        try:
            for lo, hi in queue:
                loop(*arguments, lo, hi)
        except BaseException as error:  # must not unwind into C: reported by the caller below
            failures.append(error)

    _region(threads, work)
    if failures:
        raise failures[0]


def _region(threads: int, work: Callable[..., None]) -> None:
    """Run ``work`` once on each of ``threads`` threads, the calling one among them, and wait for all."""
    openmp = _openmp()
    if openmp is not None:
        openmp(_Callback(work), None, threads, 0)
        return
    futures = [_python_threads(threads - 1).submit(work) for _ in range(threads - 1)]
    work()
    for future in futures:
        if not future.cancel():  # one that has not started (busy machine) has nothing left to do
            future.result()


def pool() -> str:
    """Name of the thread pool that runs the loops of compiled kernels."""
    if torch.get_num_threads() < 2:
        return "the calling thread"
    return "PyTorch's OpenMP threads" if _openmp() is not None else "Python threads"


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _openmp() -> Callable[..., None] | None:
    """Return GOMP_parallel(function, data, threads, flags) of the library that libtorch_cpu is linked to, or None."""
    if torch.get_num_threads() < 2 or os.name != "posix":
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        # A symbol is looked up in the library and in those it depends on, so this is PyTorch's own copy.
        entry = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    entry.argtypes = [_Callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    entry.restype = None
    return entry


@functools.cache
def _python_threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="maskgrad")
