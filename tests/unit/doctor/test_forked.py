"""Steps of programs that are watched, at other lengths: in processes that go on with the program from its batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader

import maskgrad as mg

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked")

REAL = torch.arange(7) < torch.tensor([7, 5, 4, 2])[:, None]
LABELS = torch.tensor([0, 1, 2, 3])


class Encoder(nn.Module):
    """Ids to hidden states, zero in the padding."""

    def __init__(self, positions: int = 0) -> None:
        super().__init__()
        self.table, self.dropout = nn.Embedding(20, 8, padding_idx=0), nn.Dropout(0.1)
        self.positions = nn.Embedding(positions, 8) if positions else None

    def forward(self, ids: Any, mask: Tensor | None = None) -> Tensor:
        hidden = self.table(ids)
        if self.positions is not None:
            hidden = hidden + self.positions.weight[: ids.shape[1]]
        hidden = self.dropout(hidden)
        return hidden if mask is None else hidden.masked_fill(~mask[..., None], 0.0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def ids_of(real: Tensor = REAL) -> Tensor:
    return torch.randint(1, 20, real.shape) * real


def batches(*, loader: bool) -> Iterable[Any]:
    made = [{"ids": ids_of(), "mask": REAL, "labels": LABELS, "tags": ids_of() % 5 + REAL} for _ in range(4)]
    return DataLoader(made, batch_size=None) if loader else made


def loss_of(head: nn.Module, hidden: Tensor, batch: dict[str, Tensor], right: bool) -> Tensor:
    count = batch["mask"].sum(1, keepdim=True) if right else hidden.size(1)
    return F.cross_entropy(head(hidden.sum(1) / count), batch["labels"])  # LEAK


def pooled(*, right: bool, loader: bool, positions: int = 0) -> Iterator[None]:
    model, head = Encoder(positions), nn.Linear(8, 5)
    for batch in batches(loader=loader):
        loss_of(head, model(batch["ids"], batch["mask"]), batch, right).backward()
        yield


def labelled(*, right: bool, loader: bool, shifted: bool = False) -> Iterator[None]:
    """Labels are no argument of the model; they are padded like the ids, or are a part of them."""
    model, head = Encoder(), nn.Linear(8, 20)
    for batch in batches(loader=loader):
        ids, tags = (batch["ids"][:, :-1], batch["ids"][:, 1:]) if shifted else (batch["ids"], batch["tags"])
        losses = F.cross_entropy(head(model(ids)).mT, tags, reduction="none", ignore_index=0)
        (losses.sum() / ((tags != 0).sum() if right else losses.numel())).backward()  # LEAK
        yield


def packed(*, right: bool, loader: bool) -> Iterator[None]:
    """With total_length: without, the states are as long as the longest sample, and the mask cannot be wider."""
    table, gru, head = nn.Embedding(20, 8, padding_idx=0), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 5)
    for batch in batches(loader=loader):
        mask = batch["mask"]
        rows = pack_padded_sequence(table(batch["ids"]), mask.sum(1), batch_first=True)
        hidden, _ = pad_packed_sequence(gru(rows)[0], True, total_length=mask.shape[1])
        loss_of(head, hidden * mask[..., None], batch, right).backward()
        yield


def run(program: Callable[..., Iterator[None]], **options: Any) -> mg.doctor.Report:
    with mg.doctor.watch(stop=True) as watched:
        for _ in program(**options):
            pass
    return watched.report


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize(
    "program", [pooled, partial(pooled, positions=7), labelled, partial(labelled, shifted=True), packed]
)
def test_a_padded_length_in_the_program_itself_is_found_at_its_line(
    program: Callable[..., Iterator[None]], loader: bool
) -> None:
    report = run(program, right=False, loader=loader)
    assert report.kinds() == ["padding-length"], report
    assert report.findings[0].code.endswith("# LEAK")
    report = run(program, right=True, loader=loader)
    assert report.ok, report
    assert "padding-length" in [tried.name for tried in report.experiments], report


@pytest.mark.parametrize("loader", [True, False])
def test_a_program_that_takes_no_other_length_is_right_with_a_note(loader: bool) -> None:
    """A layer over all positions."""
    model, head = Encoder(), nn.Linear(7 * 8, 5)
    with mg.doctor.watch(stop=True) as watched:
        for batch in batches(loader=loader):
            F.cross_entropy(head(model(batch["ids"], batch["mask"]).flatten(1)), LABELS).backward()
    assert watched.report.ok, watched.report
    notes = [note.message for note in watched.report.notes if note.about == "padding-length"]
    assert "with one more column of padding on the right: the program fails: RuntimeError" in notes[0]
    assert "with a sample of 4 positions alone, and without its padding: the program fails" in notes[1]


def _children() -> set[str]:
    """This process's own, also those that ended and were not waited for; other tests keep some."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("loader", [True, False])
def test_nothing_of_the_other_processes_is_left_in_the_program(
    loader: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither its numbers nor its output, nor processes."""
    before, found = _children(), []
    for steps in (1, 2):
        torch.manual_seed(0)
        model, losses = Encoder(), []
        with mg.doctor.watch(steps=steps):
            for batch in list(batches(loader=loader)):
                loss = model(batch["ids"], batch["mask"]).sum(1).square().mean()
                loss.backward()
                sys.stdout.write("loss\n")
                losses.append(loss.item())
        found.append((losses, model.table.weight.grad))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=0)
    assert capfd.readouterr().out.count("loss") == 8
    assert _children() <= before


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: os._exit(3), "ChildProcessError: its process ended before its backward pass"),
    ],
)
def test_a_run_that_ends_otherwise_is_a_note(fault: Callable[[], None], words: str) -> None:
    model = Encoder()
    with mg.doctor.watch() as watched:
        for batch in batches(loader=True):
            if batch["ids"].shape != (4, 7):
                fault()
            model(batch["ids"], batch["mask"]).sum(1).square().mean().backward()
    notes = [f"the program fails: {words}" in note.message for note in watched.report.notes]
    assert notes == [True, True], watched.report


def _fails(*_: Any) -> None:
    raise RuntimeError("it is read-only")


@pytest.mark.parametrize(
    ("part", "fault", "loader", "words"),
    [
        ("watching.why_not_forked", lambda _: "no forks here", True, "padding-length: no forks here; add "),
        ("forked.padding_length", lambda _: os._exit(1), True, "its process ended"),
        ("forked.padding_length", _fails, True, "RuntimeError"),
        ("forked.Variables.put", _fails, False, "a variable cannot take another length: it is read-only"),
    ],
)
def test_where_no_other_length_could_be_tried_the_report_is_incomplete(
    part: str, fault: Any, loader: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"maskgrad.doctor.{part}", fault)
    report = run(pooled, right=True, loader=loader)
    assert report.verdict == "incomplete", report
    assert words in report.unexamined[0]
    with mg.doctor.watch(steps=1) as watched:  # as with --quick
        for _ in pooled(right=True, loader=True):
            pass
    assert watched.report.ok


def test_padding_in_no_variable_leaves_the_report_incomplete() -> None:
    """The model reads its ids from an iterator of its own."""

    class Reads(Encoder):
        def forward(self, rows: Iterator[Tensor]) -> Tensor:
            return super().forward(next(rows))

    model, rows = Reads(), iter([ids_of() for _ in range(9)])
    with mg.doctor.watch(stop=True) as watched:
        for _ in range(3):
            hidden = model(rows)
            hidden.masked_fill(hidden == 0, 0.0)[:, :2].square().mean().backward()
    assert watched.report.verdict == "incomplete", watched.report
    assert "what is padded is in no variable" in watched.report.unexamined[0]


def test_a_program_of_one_step_has_tried_no_other_length() -> None:
    with mg.doctor.watch() as watched:
        next(pooled(right=False, loader=True))
    assert watched.report.verdict == "incomplete", watched.report
    assert "over after 1 backward pass" in watched.report.unexamined[0]
