"""TorchRec: a table sharded by rows over two processes, compared with one process in double precision."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.ecosystem.rows import one_line, works

with warnings.catch_warnings():  # of parts of FBGEMM that need a GPU
    warnings.simplefilter("ignore")
    import torchrec

PROGRAMS = Path(__file__).parent / "programs"
STEPS = 20


@works("torchrec", "tables sharded over processes: [a program](how_do_i/large_tables.md)")
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
    sentences = [
        torch.tensor([i for i in row if i is not None]) for words, _ in given for row in words.tolist()
    ]
    wanted = [t for _, target in given for t in target.tolist()]
    expected = []
    for _ in range(STEPS):
        squares = [
            (layer(table[ids].mean(0)).squeeze() - wish) ** 2
            for ids, wish in zip(sentences, wanted, strict=True)
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


@one_line(
    "torchrec",
    "features (`KeyedJaggedTensor`) as jagged batches, and back",
    "`mg.interop.from_keyed_jagged(features)`, `mg.interop.to_keyed_jagged({'ids': x})`",
)
def test_features_there_and_back() -> None:
    given = torchrec.KeyedJaggedTensor(
        keys=["a", "b"], values=torch.tensor([5, 6, 7, 8, 9]), lengths=torch.tensor([2, 0, 1, 0, 0, 2])
    )
    batches = mg.interop.from_keyed_jagged(given)
    assert batches["a"].tolist() == [[5, 6], [None, None], [7, None]]
    assert batches["b"].tolist() == [[None, None], [None, None], [8, 9]]
    padded = mg.from_lengths(torch.tensor([[5, 6, -1], [-1, -1, -1], [7, -1, -1]]), torch.tensor([2, 0, 1]))
    for x in (batches["a"], padded):  # other keys may be padded to other sizes
        back = mg.interop.to_keyed_jagged({"a": x, "b": batches["b"]})
        assert back.keys() == ["a", "b"]
        assert torch.equal(back.values(), given.values())
        assert torch.equal(back.lengths(), given.lengths())
