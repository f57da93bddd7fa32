"""TorchRec: a table sharded by rows over two processes, compared with one process in double precision."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg

with warnings.catch_warnings():  # of parts of FBGEMM that need a GPU
    warnings.simplefilter("ignore")
    import torchrec

PROGRAMS = Path(__file__).parent / "programs"
STEPS = 20


@pytest.mark.filterwarnings("ignore")  # of TorchRec's planner
def test_two_processes_train_as_one_in_double_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    import large_tables as program  # type: ignore[import-not-found]

    torch.multiprocessing.spawn(program.train, (str(tmp_path),), nprocs=2)
    losses, resumed = torch.load(tmp_path / "losses")
    rows, head = torch.load(tmp_path / "weights")
    torch.testing.assert_close(resumed, losses[STEPS // 2 :], rtol=1e-5, atol=1e-7)

    table = nn.Parameter(torch.full((program.ROWS, program.WIDTH), 0.1, dtype=torch.float64))
    torch.manual_seed(0)
    layer = nn.Linear(program.WIDTH, 1)
    layer.double()
    steps: list[Any] = [torch.optim.Adagrad([table], 0.1, eps=1e-8), torch.optim.SGD(layer.parameters(), 0.1)]
    given = [program.batch(rank) for rank in range(2)]
    expected = []
    for _ in range(STEPS):
        squares = [
            (layer(table[torch.tensor([i for i in row if i is not None])].mean(0)).squeeze() - wish) ** 2
            for words, target in given
            for row, wish in zip(words.tolist(), target.tolist(), strict=True)
            if wish is not None
        ]
        loss = torch.stack(squares).mean()
        for one in steps:
            one.zero_grad()
        loss.backward()
        for one in steps:
            one.step()
        expected.append(loss.item())
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rows.double(), table.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.double(), layer.weight.detach(), rtol=1e-4, atol=1e-5)


def test_features_there_and_back() -> None:
    given = torchrec.KeyedJaggedTensor(
        keys=["a", "b"], values=torch.tensor([5, 6, 7, 8, 9]), lengths=torch.tensor([2, 0, 1, 0, 0, 2])
    )
    batches = mg.interop.from_keyed_jagged(given)
    assert batches["a"].tolist() == [[5, 6], [None, None], [7, None]]
    assert batches["b"].tolist() == [[None, None], [None, None], [8, 9]]
    back = mg.interop.to_keyed_jagged(batches)
    assert back.keys() == ["a", "b"]
    assert torch.equal(back.values(), given.values())
    assert torch.equal(back.lengths(), given.lengths())
