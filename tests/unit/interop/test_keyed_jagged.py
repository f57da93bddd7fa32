"""Features of TorchRec, by objects with their methods; tests/ecosystem/test_torchrec.py has the package itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maskgrad as mg


class Feature:
    """What ``torchrec.JaggedTensor`` has."""

    def __init__(self, values: Tensor, *offsets: int) -> None:
        self.values, self.offsets = lambda: values, lambda: torch.tensor(offsets)


def test_rows_of_a_table_keep_their_gradient() -> None:
    rows = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64, requires_grad=True)
    found = mg.interop.from_keyed_jagged(
        {"words": Feature(rows, 0, 2, 2, 3), "none": Feature(rows[:0], 0, 0)}
    )
    assert found["words"].tolist() == [[[1.0], [2.0]], [[None], [None]], [[6.0], [None]]]
    assert found["none"].shape == (1, 0, 1)
    found["words"].mean(1).filled(0.0).sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.5], [0.5], [1.0]]


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match=r"found Tensor; for values and offsets use mg\.from_offsets"):
        mg.interop.from_keyed_jagged(torch.zeros(3))


def test_batches_of_different_sizes_are_refused() -> None:
    ids = mg.from_sequences([torch.tensor([1]), torch.tensor([2, 3])], layout=torch.jagged)
    for other in (ids[:1], ids.float(), mg.from_offsets(torch.zeros(3, 2), torch.tensor([0, 1, 3]))):
        with pytest.raises(ValueError, match=r"of one batch size and one dtype; found 'a' \(2, 2\) .*'b'"):
            mg.interop.to_keyed_jagged({"a": ids, "b": other})
