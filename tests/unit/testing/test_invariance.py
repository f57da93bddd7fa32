from __future__ import annotations

import pytest
from torch import Tensor, nn
from torch.utils.data import DataLoader

import maskgrad as mg
from maskgrad.errors import ExaminationError
from maskgrad.testing import fixtures
from tests.unit.doctor.programs import batch, step_with

pytest_plugins = ["maskgrad.testing.fixtures"]


def test_padding() -> None:
    mg.testing.assert_padding_invariant(step_with("fixed"), batch(), padding={"x": "mask"})
    for name in ("mean", "size"):
        with pytest.raises(AssertionError, match=f"# {name}"):
            mg.testing.assert_padding_invariant(step_with(name), batch())


def test_garbage() -> None:
    # what is masked after the product has met it: right for numbers, and NaN in a gradient
    with pytest.raises(AssertionError, match="nan-under-mask"):
        mg.testing.assert_garbage_invariant(step_with("fixed"), batch())
    layer = nn.Linear(3, 1)
    mg.testing.assert_garbage_invariant(lambda b: layer(b["x"][b["mask"]]).mean(), batch())


def test_accumulation() -> None:
    with pytest.raises(AssertionError, match="denominator"):
        mg.testing.assert_accumulation_invariant(step_with("parts"), batch())
    layer = nn.Linear(3, 1)

    def tokens(b: dict[str, Tensor]) -> Tensor:
        loss: Tensor = layer(b["x"][b["mask"]]).mean()
        return loss

    with pytest.raises(ExaminationError, match="write the loop over the parts"):
        mg.testing.assert_accumulation_invariant(tokens, batch())


def test_padding_must_be_known() -> None:
    layer = nn.Linear(3, 1)
    with pytest.raises(ExaminationError, match="no padding was recognised"):
        mg.testing.assert_padding_invariant(lambda b: layer(b).mean(), batch()["x"])


def test_watched_steps_fail_a_test_that_trains_nothing() -> None:
    steps = fixtures.watched_steps._get_wrapped_function()()
    next(steps)
    with pytest.raises(pytest.fail.Exception, match="not all was examined"):
        next(steps)


def test_fixtures(padding_invariant, garbage_invariant, mask_doctor, watched_steps) -> None:  # type: ignore[no-untyped-def]
    layer = nn.Linear(3, 1)

    def step(b: dict[str, Tensor]) -> Tensor:
        loss: Tensor = layer(b["x"][b["mask"]]).mean()
        return loss

    padding_invariant(step, batch())
    garbage_invariant(step, batch())
    assert mask_doctor(step, batch()).ok
    for given in DataLoader([batch()], batch_size=None):
        step(given).backward()
    assert watched_steps.report.ok


def test_ranks(ranks_invariant) -> None:  # type: ignore[no-untyped-def]
    layer, data = nn.Linear(3, 1), batch()
    data = {name: held.repeat_interleave(2, 0) for name, held in data.items()}

    def step(b: dict[str, Tensor]) -> Tensor:
        loss: Tensor = layer(b["x"][b["mask"]]).mean()
        return loss

    with pytest.raises(AssertionError, match="denominator"):
        ranks_invariant(step, data, ranks=2)
    ranks_invariant(lambda b: layer(b["x"]).mean(), {"x": data["x"]}, ranks=2)
    with pytest.raises(ExaminationError, match="too few for 99 ranks"):
        mg.testing.assert_ranks_invariant(step, data, ranks=99)
