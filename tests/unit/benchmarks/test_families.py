"""Every case of every family, on small operands: it runs, and all contenders agree with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.case import OURS, LeftOutError, WrongResultError
from benchmarks.families import FAMILIES, coalescing, compiled, models, per_sample, storage, updates
from benchmarks.peers import PEERS
from benchmarks.plan import Family, Point
from benchmarks.timing import TimingConfig, measure

ONCE = TimingConfig(fewest=1, most=1, seconds=0.0, shortest=0.0)
#: torch.compile takes seconds for each; FBGEMM and Opacus are other programs' business
LEFT_OUT = {"compiled-where", "fbgemm", "opacus"}


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(coalescing, "TABLE", 500)
    monkeypatch.setattr(compiled, "BACKEND", "eager")  # Inductor takes seconds for each case
    monkeypatch.setattr(models, "BACKEND", "eager")
    monkeypatch.setattr(models, "ENCODERS", ((7, 8), (11, 16)))
    monkeypatch.setattr(coalescing, "GRID", 40)
    monkeypatch.setattr(updates, "TABLE", 500)
    monkeypatch.setattr(updates, "WATCHED", 100)
    monkeypatch.setattr(per_sample, "SPARSE_ROWS", 500)
    monkeypatch.setattr(storage, "WIDE", 200)
    monkeypatch.setattr(storage, "SQUARE", 60)
    yield
    updates.FAMILY.forget()


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_contenders_agree(family: Family) -> None:
    wanted = set(PEERS) - LEFT_OUT
    measured, peers = 0, set()
    # most representatives are cases of the whole, too
    cases = {
        str(case): case for whole in (True, False) for case in family.cases(Point(33, 0.5, "float32", whole))
    }
    for case in cases.values():
        notices: list[str] = []
        try:
            rows = measure(case, ONCE, wanted, notices.append)
        except LeftOutError:
            continue
        assert notices == []
        assert rows[0].peer == OURS
        assert rows[0].family == family.name
        measured += 1
        peers |= {row.peer for row in rows}
    assert measured
    assert len(peers) > 1


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("SGD", {"first_step": lambda p, g: p - 0.1001 * g}),
        ("AdamW skip", {"first_step": updates._adam}),  # forgets the decay
        ("AdamW zero", {"idle": 1.0}),  # rows without a gradient do not decay
        ("AdamW skip", {"idle_dense": 1.0}),
    ],
)
def test_a_wrong_step_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, broken: dict[str, Any]) -> None:
    monkeypatch.setitem(updates._RULES, name, replace(updates._RULES[name], **broken))
    with pytest.raises(WrongResultError, match=f"wrong in updates, {name}.*: rows with"):
        measure(updates._case(33, name, updates.STEP, "each twice"), ONCE, ["torch.optim-dense"])
