"""Where rows lie: each on exactly one rank, in slots that do not depend on the number of ranks."""

from __future__ import annotations

import pytest
import torch

from maskgrad.distributed.sharding.placement import Placement

SIZES = (0, 1, 2, 3, 7, 10, 64, 101)


@pytest.mark.parametrize("arrangement", ["block", "cyclic", 0, 2])
@pytest.mark.parametrize("world_size", [3, 4, 7])
def test_every_row_lies_on_one_rank_at_the_place_that_is_said(
    arrangement: str | int, world_size: int
) -> None:
    for rows in SIZES:
        places = [Placement(rows, world_size, rank, arrangement) for rank in range(world_size)]  # type: ignore[arg-type]
        owned = torch.cat([place.own_rows() for place in places])
        assert sorted(owned[owned >= 0].tolist()) == list(range(rows))
        ends = places[0].boundaries(torch.device("cpu"))
        for place in places:
            own = place.own_rows()
            assert len(own) == place.local_rows
            assert place.first_row(place.rank) == ends[place.rank]
            physical = place.physical(own[own >= 0])
            assert torch.equal(physical, place.first_row(place.rank) + (own >= 0).nonzero().view(-1))
            for local, row in enumerate(own.tolist()):
                if row >= 0:
                    assert place.local_row(row) == local
                    assert all(other.local_row(row) is None for other in places if other is not place)
        if isinstance(arrangement, int):
            assert [place.local_rows for place in places] == [
                rows * (rank == arrangement) for rank in range(world_size)
            ]


def test_the_grid_does_not_depend_on_the_number_of_ranks() -> None:
    for rows in SIZES:
        assert len({Placement(rows, world, 0, "cyclic").grid((5,)) for world in (1, 2, 3, 8)}) == 1
        assert Placement(rows, 3, 1, "block").grid((5,)) == (rows, 5)


def test_neighbours_are_apart_where_that_is_wanted() -> None:
    place = Placement(1_000_000, 8, 0, "cyclic")
    owner = torch.bucketize(
        place.physical(torch.arange(1024)), place.boundaries(torch.device("cpu"))[1:], right=True
    )
    assert torch.equal(owner.bincount(minlength=8), torch.full((8,), 128))
    assert place.grid_rows * place.grid_columns - 1_000_000 < place.grid_rows


def test_large_tables_are_not_counted_row_by_row() -> None:
    place = Placement(10**12, 1000, 999, "cyclic")
    assert place.grid_rows == 1 << 20
    assert place.physical(torch.tensor([10**12 - 1])).item() < place.grid_rows * place.grid_columns


@pytest.mark.parametrize("placement", ["rows", 2, -1, True, None])
def test_other_placements_are_refused(placement: object) -> None:
    with pytest.raises(ValueError, match="placement"):
        Placement(4, 2, 0, placement)  # type: ignore[arg-type]
