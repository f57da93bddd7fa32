"""Random programs of operations, views and writes: thousands here, more with ``python -m tests.random_programs``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.patterns.boolean import BooleanPattern
from tests.effort import is_light
from tests.random_programs import Failure, check, check_writes
from tests.random_programs.drawing import draw
from tests.random_programs.runs import filled
from tests.random_programs.steps import apply, started

#: The same programs each time, a minute of them; `make fuzz` draws a million.
CHUNK = 60 if is_light() else 500


@pytest.mark.parametrize("first", range(0, 3 * CHUNK, CHUNK))
def test_nothing_tells_the_runs_apart(first: int) -> None:
    kinds = Counter(check(seed) for seed in range(first, first + CHUNK))
    assert kinds["with gradients"] > CHUNK / 2


@pytest.mark.parametrize("first", range(0, 3 * CHUNK, CHUNK))
def test_views_and_writes_train_as_in_pytorch(first: int) -> None:
    kinds = Counter(check_writes(seed) for seed in range(first, first + CHUNK))
    assert kinds["trained"] > CHUNK / 2


def _lost_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BooleanPattern, "of_view", lambda self, mask: BooleanPattern(mask.clone()))


def _lost_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def rebound(target: Any, values: torch.Tensor, mask: torch.Tensor) -> None:
        target._rebind(values.to(target._values.dtype), BooleanPattern(mask))

    monkeypatch.setattr("maskgrad.masked_tensor.writing.write_entries", rebound)


def _garbage_in_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskgrad.semantics.scans.fill", lambda operand, mask, value: operand.values)


def test_a_write_to_a_mask_that_the_graph_has_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BooleanPattern, "keep", lambda self: None)
    with pytest.raises(Failure, match="stale, and PyTorch trains"):
        Counter(check_writes(seed) for seed in range(400))


@pytest.mark.parametrize("plant", [_lost_views, _lost_writes, _garbage_in_sums])
def test_a_fault_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)

    def many() -> None:
        for seed in range(1, 401):  # 0 would be compiled, each time it is made shorter
            check(seed)

    with pytest.raises(Failure) as found:
        many()
    program = str(found.value)
    assert program.startswith("# seed")
    steps = [line for line in program.splitlines()[2:] if "mg.masked(" not in line and ".clone()" not in line]
    assert sum(line.startswith(("v", "[v")) for line in steps) <= 3, program


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_what_is_printed_is_the_program(first: int) -> None:
    for seed in range(first, first + 100):
        program = draw(seed)
        leaves, masks = ([x.clone() for x in own] for own in (program.leaves, program.masks))
        variables = started(mg.masked, leaves, masks)
        names: dict[str, Any] = {}
        try:
            for step in program.steps:
                variables += apply(step, variables)
        except (mg.errors.MaskgradError, RuntimeError):
            continue
        exec(str(program).replace("requires_grad=True", "requires_grad=False"), names)
        for i, variable in enumerate(variables):
            torch.testing.assert_close(filled(names[f"v{i}"]), filled(variable), equal_nan=True)
