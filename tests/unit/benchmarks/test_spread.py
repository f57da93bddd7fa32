from __future__ import annotations

import pytest

from benchmarks.spread import Spread, exponent, spread


def test_quartiles_of_an_even_number_of_times() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0]) == Spread(1.75, 2.5, 3.25)


def test_one_time_is_its_own_spread() -> None:
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_one_slow_round_does_not_move_the_median() -> None:
    assert spread([1.0, 1.0, 1.0, 1.0, 1000.0]).median == 1.0


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power(power: float) -> None:
    sizes = [10.0, 1000.0, 100.0]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_one_size_has_no_exponent() -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        exponent([10.0, 10.0], [1.0, 2.0])
