"""Loops in pieces on PyTorch's threads."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from maskgrad import kernels
from maskgrad.kernels.cpu import threads


@pytest.fixture(params=["OpenMP", "Python threads"])
def _pool(request, monkeypatch):
    if request.param == "Python threads":
        monkeypatch.setattr(threads, "_openmp", lambda: None)


@pytest.mark.usefixtures("_pool")
def test_each_task_runs_once_on_more_than_one_thread_and_an_error_reaches_the_caller():
    seen, workers = [], set()

    def loop(name, lo, hi):
        assert name == "argument"
        workers.add(threading.get_ident())
        seen.extend(range(lo, hi))
        time.sleep(0.01)
        if hi == 1000:  # the last piece, also where one thread does all
            raise RuntimeError(f"piece {lo}")

    for tasks in (1, 2, 7):
        seen.clear()
        threads.run(loop, "argument", tasks=tasks, elements=10**9)
        assert sorted(seen) == list(range(tasks))
    with pytest.raises(RuntimeError, match="piece"):
        threads.run(loop, "argument", tasks=1000, elements=10**9)
    assert len(workers) == torch.get_num_threads()


def test_little_work_stays_on_the_calling_thread():
    calls = []
    threads.run(lambda lo, hi: calls.append((lo, hi)), tasks=100, elements=1000)
    assert calls == [(0, 100)]


def test_threads_of_python_may_call_kernels_together():
    values, mask = torch.randn(1000, 1000), torch.rand(1000, 1000) < 0.5
    expected = kernels.masked_sum(values, mask, (1,), False)[0]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: kernels.masked_sum(values, mask, (1,), False)[0], range(30)))
    assert all(torch.equal(result, expected) for result in results)


def _child(queue, values, mask):
    queue.put(kernels.masked_sum(values, mask, (0, 1), False)[0].item())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork here")
@pytest.mark.own_dtype("bfloat16", "float16")
def test_a_forked_child_runs_kernels():
    """PyTorch's own parallel operations hang in such a child; ours run on one thread."""
    values, mask = torch.ones(1000, 1000), torch.ones(1000, 1000, dtype=torch.bool)
    kernels.masked_sum(values, mask, (0, 1), False)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_child, args=(queue, values, mask), daemon=True)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == 1e6
