"""Every case of every family, on small operands: it runs, and all contenders agree with the reference."""

from __future__ import annotations

import contextlib
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
    small = {coalescing: {"TABLE": 500, "GRID": 40}, updates: {"TABLE": 500, "WATCHED": 100}}
    small |= {per_sample: {"SPARSE_ROWS": 500}, storage: {"WIDE": 200, "SQUARE": 60}}
    eager = {compiled: {"BACKEND": "eager"}, models: {"BACKEND": "eager", "ENCODERS": ((7, 8), (11, 16))}}
    for module, names in (small | eager).items():  # Inductor takes seconds for each case
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)
    yield
    updates.FAMILY.forget()


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.compiled
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_contenders_agree(family: Family) -> None:
    wanted = set(PEERS) - LEFT_OUT
    peers = set()
    # most representatives are cases of the whole, too
    cases = {
        str(case): case for whole in (True, False) for case in family.cases(Point(33, 0.5, "float32", whole))
    }
    for case in cases.values():
        notices: list[str] = []
        with contextlib.suppress(LeftOutError):
            rows = measure(case, ONCE, wanted, notices.append)
            assert notices == []
            assert (rows[0].peer, rows[0].family) == (OURS, family.name)
            peers |= {row.peer for row in rows}
    assert len(peers) > 1


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("AdamW skip", {"first_step": updates._adam}),  # forgets the decay
        ("AdamW zero", {"idle": 1.0}),  # rows without a gradient do not decay
        ("AdamW skip", {"idle_dense": 1.0}),
    ],
)
def test_a_wrong_step_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, broken: dict[str, Any]) -> None:
    monkeypatch.setitem(updates._RULES, name, replace(updates._RULES[name], **broken))
    with pytest.raises(WrongResultError, match=f"wrong in updates, {name}.*: rows with"):
        measure(updates._case(33, name, updates.STEP, "each twice"), ONCE, ["torch.optim-dense"])
