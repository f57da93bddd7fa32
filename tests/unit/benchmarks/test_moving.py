"""The yardstick of steps reads and writes what it says."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.moving import _move, moving
from maskgrad.kernels.cpu.sorting import runs


def test_values_go_from_table_to_table() -> None:
    tables = [torch.full((20, 3), float(t)) for t in range(3)]
    ids, values = torch.tensor([7, 2, 7]), torch.tensor([[10.0] * 3, [11.0] * 3, [12.0] * 3])
    found = runs(ids, 20)
    bases = np.array([t.data_ptr() for t in tables], np.int64)
    flat = values.reshape(-1).numpy()
    _move(bases, found.rows, flat, found.keys, found.places, found.starts, 3, 0, len(found.rows))
    for number, table in enumerate(tables):
        expected = torch.full((20, 3), float(number))
        expected[[2, 7]] = torch.tensor([[11.0], [12.0]]) if number == 2 else number + 1.0
        assert torch.equal(table, expected)


def test_batches_are_taken_in_turns() -> None:
    batches = [(torch.tensor([1, 1]), torch.ones(2, 4)), (torch.tensor([3]), torch.ones(1, 4))]
    move = moving(2, 10, 4, batches)
    for _ in range(3):
        move()
