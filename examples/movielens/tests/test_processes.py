"""Parts of batches, and what happens when one of the processes fails."""

from __future__ import annotations

import itertools
import multiprocessing
import operator
import os

import pytest
import torch
import typer

from examples.movielens import __main__ as demo
from examples.movielens.processes import ALONE, Share, together


def test_the_parts_make_up_the_batch() -> None:
    for length in (0, 1, 5, 1000):
        for processes in (1, 2, 3, 7):
            whole = list(range(length))
            parts = [whole[Share(rank, processes).part(length)] for rank in range(processes)]
            assert list(itertools.chain(*parts)) == whole
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert ALONE.part(3) == slice(0, 3)


class EndsOnArrival:
    """Work that no other process can even read."""

    def __call__(self, share: Share) -> None:
        raise AssertionError

    def __reduce__(self) -> object:
        return (os._exit, (7,))


def learn(work) -> None:
    with together(2, work) as share:
        assert share == Share(0, 2)
        share.average_gradients(torch.nn.Linear(1, 1))


def test_the_failure_of_another_process_is_an_error_here() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(RuntimeError, match="Another rank has ended"):
        learn(operator.getitem)  # it lacks an argument
    with pytest.raises(RuntimeError, match="process 1 ended with exit code 7 before it began"):
        learn(EndsOnArrival())
    assert not torch.distributed.is_initialized()
    assert set(multiprocessing.active_children()) == before


def test_processes_do_not_share_a_gpu(tmp_path) -> None:
    with pytest.raises(typer.BadParameter, match="2 processes would share cuda; take --device cpu"):
        demo.movielens(device="cuda", out=tmp_path, nproc=2)
