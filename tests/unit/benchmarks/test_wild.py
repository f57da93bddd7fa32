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
from benchmarks.wild.oracle import Case, judge
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
        size = hidden.shape[1] if self.how == "padding in the count" else real.sum(1)
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
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_oracle_sees_leaks_and_nothing_else(how: str, leaks: list[str], side: str) -> None:
    assert judge(case(how), side, training=False).leaks() == leaks
    row = row_of(case(how), side, training=False)
    assert verdict(row) == ("found" if leaks else "clean")


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
