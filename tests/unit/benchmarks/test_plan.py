from __future__ import annotations

import pytest

from benchmarks.families import FAMILIES
from benchmarks.peers import PEERS
from benchmarks.plan import Family, Plan, Point, UnknownNameError

FAMILY = Family(
    "things",
    "about",
    "side",
    cases=lambda _: [],
    sizes=(100, 10),
    quick_size=4,
    densities=(0.5, 0.1),
    dtypes=("float32", "float64"),
)
BARE = Family("bare", "about", "side", cases=lambda _: [], sizes=(100,), quick_size=4)


def test_a_star_around_the_anchor() -> None:
    assert list(Plan().points(FAMILY)) == [
        Point(100, 0.5, "float32", in_full=True),
        Point(10, 0.5, "float32", in_full=False),
        Point(100, 0.1, "float32", in_full=False),
        Point(100, 0.5, "float64", in_full=False),
    ]


def test_what_is_asked_for_is_crossed() -> None:
    plan = Plan(sizes=(7, 8), densities=(0.25, 1.0))
    assert list(plan.points(FAMILY)) == [
        Point(size, density, "float32", in_full=True) for size in (7, 8) for density in (0.25, 1.0)
    ]
    assert list(plan.points(BARE)) == [Point(size, 1.0, "float32", in_full=True) for size in (7, 8)]


def test_quick_is_one_small_point_without_compilers() -> None:
    assert list(Plan(quick=True).points(FAMILY)) == [Point(4, 0.5, "float32", in_full=True)]
    assert list(Plan(quick=True).points(BARE)) == [Point(4, 1.0, "float32", in_full=True)]
    assert "compiled-where" not in Plan(quick=True).wanted_peers()
    assert Plan(quick=True, peers=["compiled-where"]).wanted_peers() == ["compiled-where"]
    assert Plan().wanted_peers() == list(PEERS)


def test_a_dtype_that_a_family_has_not_is_passed_over() -> None:
    assert list(Plan(dtypes=("float64",)).points(BARE)) == []
    assert [point.dtype for point in Plan(dtypes=("float64",)).points(FAMILY)] == ["float64"]


def test_families_keep_their_order() -> None:
    assert Plan(families=("bare", "things")).chosen([FAMILY, BARE]) == [FAMILY, BARE]
    assert Plan().chosen([FAMILY, BARE]) == [FAMILY, BARE]


@pytest.mark.parametrize(
    ("plan", "option", "words"),
    [
        (Plan(families=("thigns",)), "families", "'thigns' is not among them; there are things, bare"),
        (Plan(families=()), "families", "nothing was named; there are things, bare"),
        (Plan(peers=("jax",)), "peers", "'jax' is not among them; there are torch.masked"),
        (Plan(dtypes=("float8",)), "dtypes", "'float8' is not among them; there are float32, float64"),
        (Plan(sizes=(64, 1)), "sizes", "at least 2, got 1"),
        (Plan(densities=(0.0,)), "densities", "above 0 and at most 1, got 0"),
        (Plan(densities=(float("nan"),)), "densities", "got nan"),
    ],
)
def test_what_does_not_exist_is_refused(plan: Plan, option: str, words: str) -> None:
    with pytest.raises(UnknownNameError, match=words) as refusal:
        plan.chosen([FAMILY, BARE])
    assert refusal.value.option == option


def test_names_of_families_are_different_and_each_has_an_anchor() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert all(family.sizes and family.dtypes for family in FAMILIES)
