"""Linear steps with gradient zero: a column is the product of the steps since."""

from __future__ import annotations

import pytest
import torch

from maskgrad.optim.lazy.linear import LinearStep


def test_columns_are_products_and_hyperparameters_may_change() -> None:
    steps = [
        LinearStep(((0.9 - 0.01 * k, -0.1), (0.05 * k, 0.8)), factors=(1.0, 0.99), buffer=0)
        for k in range(200)
    ]
    table = steps[0].new_table(2, 1e-7)
    for step in steps:
        assert table.fits(step)
        table.append(step)
    since = torch.tensor([0, 150, 199, 200])
    tensors = [torch.randn(4, 3, dtype=torch.float64) for _ in range(3)]
    expected = [t.clone() for t in tensors]
    for row, start in enumerate(since.tolist()):
        for step in steps[start:]:
            (pp, pb), (bp, bb) = step.matrix
            p, b = expected[0][row].clone(), expected[1][row].clone()
            expected[0][row], expected[1][row] = pp * p + pb * b, bp * p + bb * b
            expected[2][row] *= 0.99
    table.apply_(tensors, since)
    for found, wanted in zip(tensors, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-200)


def test_without_a_buffer() -> None:
    step = LinearStep(((0.5, 0.0), (0.0, 1.0)))
    table = step.new_table(0, 1e-7)
    table.append(step)
    table.append(step)
    param = torch.ones(2, 3)
    table.apply_([param], torch.tensor([0, 1]))
    assert torch.equal(param, torch.tensor([[0.25], [0.5]]).expand(2, 3))


def test_what_changes_nothing() -> None:
    assert LinearStep(factors=(1.0,)).changes_nothing()
    assert not LinearStep(factors=(0.9,)).changes_nothing()
    assert not LinearStep(((0.9, 0.0), (0.0, 1.0))).changes_nothing()


def test_steps_of_another_form_do_not_fit() -> None:
    table = LinearStep(factors=(1.0,), buffer=0).new_table(1, 1e-7)
    assert not table.fits(LinearStep(factors=(1.0,)))
    assert not table.fits(LinearStep(factors=(1.0, 1.0), buffer=0))
    assert not table.fits(LinearStep(factors=(1.0,), buffer=0, sign=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sign_survives_however_small_the_number_has_become(dtype: torch.dtype) -> None:
    step = LinearStep(((1.0, -0.5), (0.0, 1.0)), factors=(0.5,), buffer=0, sign=True)
    table = step.new_table(1, 1e-7)
    for _ in range(3000):
        table.append(step)
    param, momentum = torch.zeros(1, 3, dtype=dtype), torch.tensor([[2.0, -3.0, 0.0]], dtype=dtype)
    table.apply_([param, momentum], torch.tensor([0]))
    assert param.tolist() == [[-1500.0, 1500.0, 0.0]]
    assert momentum.sign().tolist() == [[1.0, -1.0, 0.0]]
    assert momentum.abs().max() < 1e-30
