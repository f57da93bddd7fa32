"""The doctor on other people's models: how they are built, an oracle that sees leaks and nothing else, and the page."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.wild.architectures import NothingToPadError, architectures
from benchmarks.wild.batches import Samples
from benchmarks.wild.examined import case_of, row_of, sides_of
from benchmarks.wild.oracle import Case, _counts, _within, judge
from benchmarks.wild.page import PAGE, RESULTS, read, tables, verdict
from benchmarks.wild.processes import in_processes


class Pooled(nn.Module):
    """A mean over positions, real or padded."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.embed, self.head = how, nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        real, hidden = mask.to(self.head.weight.dtype)[..., None], self.embed(ids)
        if self.how == "padding in the sum":
            return self.head(hidden.sum(1) / real.sum(1))
        width = hidden.shape[1]
        if self.how == "whole frames only":
            hidden, real = hidden[:, : width - width % 2], real[:, : width - width % 2]
        if self.how == "asks whether there is padding" and not bool(real.all()):
            hidden = 2 * hidden
        size = width if self.how == "padding in the count" else real.sum(1)
        return self.head((hidden * real).sum(1) / size)


def case(how: str) -> Case:
    torch.manual_seed(0)
    rows = [{"ids": torch.randint(1, 9, (size,))} for size in (6, 3)]
    samples = Samples(rows, {"ids": 0}, "mask")
    return Case(how, Pooled(how), samples, lambda model, batch: {"pooled": model(**batch)}, "none")


@pytest.mark.parametrize(
    ("how", "leaks"),
    [
        ("right", []),
        ("padding in the sum", ["rewritten", "longer", "alone"]),
        ("padding in the count", ["longer", "alone"]),
        ("whole frames only", ["longer", "alone"]),
        ("asks whether there is padding", ["longer", "alone"]),
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_oracle_sees_leaks_and_nothing_else(how: str, leaks: list[str], side: str) -> None:
    assert judge(case(how), side, training=False).leaks() == leaks
    row = row_of(case(how), side, training=False)
    assert verdict(row) == ("found" if leaks else "clean")


def test_the_oracle_asks_of_a_sample_without_padding_in_training_too() -> None:
    assert judge(case("asks whether there is padding"), "right", training=True).leaks() == ["longer"]
    assert judge(case("right"), "right", training=True).leaks() == []


def test_tables_may_read_ids_beside_tokens_of_the_model() -> None:
    ids, marked = torch.tensor([[1, 2], [3, 0]]), torch.tensor([[False, False], [False, True]])
    prompt = torch.tensor([[7], [7]])
    for given, places in ((ids, [3]), (torch.cat([prompt, ids], 1), [5]), (torch.cat([ids, prompt], 1), [4])):
        found = _within(given, ids, marked)
        assert found is not None
        assert found.flatten().nonzero()[:, 0].tolist() == places
    assert _within(ids + 1, ids, marked) is None
    assert _within(torch.tensor(3), ids, marked) is None


def test_outputs_count_where_the_loss_reads_them() -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    loss = logits[:, :-1].square().mean()  # no label follows the last token
    assert _counts(logits, loss)[..., 0].tolist() == [[True, True, False]] * 2
    assert _counts(torch.zeros(2, 3), loss).all(), "of what needs no gradient nothing is known"


def test_architectures_are_built_from_their_configurations() -> None:
    pytest.importorskip("transformers", minversion="5")
    known = architectures()
    assert len(known) > 200
    made = case_of(("transformers", "bart", known["bart"]["SEQ_TO_SEQ_CAUSAL_LM"]))
    batch = made.samples.batch("left", more=2)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 14)
    assert batch["labels"].shape == (3, 6)  # a decoder's are padded for themselves, on the right
    assert made.samples.alone(2).batch()["input_ids"].shape == (1, 5)
    assert sides_of(made) == ("right", "left")
    assert made.loss(batch).isfinite()
    detection = case_of(("transformers", "detr", known["detr"]["OBJECT_DETECTION"]))
    assert detection.samples.batch(more=32)["pixel_mask"].shape == (3, 64, 128)
    with pytest.raises(NothingToPadError):
        case_of(("transformers", "vit", known["vit"]["MAPPING"]))


def some_work(item: str) -> Iterator[dict[str, Any]]:
    yield {"item": item}
    if item == "crash":
        os._exit(3)
    if item == "loop":
        time.sleep(60)
    if item == "error":
        raise ValueError("two\nlines")


@pytest.mark.processes(of="file")
def test_a_model_that_crashes_costs_itself_only() -> None:
    items = ["fine", "crash", "loop", "error"]
    found = {item: (rows, why) for item, rows, why in in_processes(some_work, items, limit=5)}
    assert all(rows == [{"item": item}] for item, (rows, _) in found.items())
    reasons = [found[item][1] for item in items]
    assert reasons[0] == ""
    assert reasons[1].startswith("the process ended")
    assert reasons[2:] == ["more than 5 s", "ValueError: two lines"]


def test_the_page_says_what_the_results_say() -> None:
    assert PAGE.read() == tables(RESULTS)
    assert "not explained yet" not in tables(RESULTS)
    assert len({(row["name"], row.get("model")) for row in read(RESULTS)}) > 50
