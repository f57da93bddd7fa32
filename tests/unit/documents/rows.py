"""Packed rows with garbage between documents, and the positions of each document by a loop over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e38)
D = torch.float64

#: rows of segment ids: negative ids are padding, at the ends, in front, between and within documents
SHAPES = {
    "two rows": [[0, 0, 0, 1, -1], [3, 1, 1, 1, 2]],
    "gaps": [[-1, 5, 5, -1, 5, 2, -1, -2], [-1, -1, 0, -1, 1, 1, -1, 1]],
    "an empty row": [[-1, -1, -1], [0, 0, 1], [-1, -1, -1]],
    "one token each": [[0, 1, 2, 3], [9, 7, 8, 6]],
    "nothing": [[-1, -1], [-1, -1]],
    "no rows": [],
}


@dataclass
class Rows:
    """``x`` has garbage wherever no document is."""

    ids: Tensor
    x: Tensor
    #: (row, position) of the tokens of each document
    places: list[list[tuple[int, int]]]

    def documents(self, x: Tensor) -> list[Tensor]:
        """The documents, one by one."""
        return [torch.stack([x[place] for place in document]) for document in self.places]


def places_of(ids: Tensor) -> list[list[tuple[int, int]]]:
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, line in enumerate(ids.tolist()):
        for position, number in enumerate(line):
            if number >= 0:
                found.setdefault((row, number), []).append((row, position))
    return list(found.values())


def rows(name: str, *features: int) -> Rows:
    """Rows of :data:`SHAPES`."""
    lines = SHAPES[name]
    ids = torch.tensor(lines, dtype=torch.int64).reshape(len(lines), len(lines[0]) if lines else 3)
    x = torch.randn(*ids.shape, *features, dtype=D)
    outside = ids < 0
    x[outside] = (
        torch.tensor(GARBAGE, dtype=D)
        .repeat(ids.numel() // 4 + 1)[: int(outside.sum())]
        .reshape(-1, *[1] * len(features))
    )
    return Rows(ids, x.requires_grad_(), places_of(ids))


def positions_of(ids: Tensor) -> Tensor:
    """Positions from 0 in each document, counting its gaps; garbage where no document is."""
    found = torch.full_like(ids, 77)
    for document in places_of(ids):
        (row, first), (_, last) = document[0], document[-1]
        found[row, first : last + 1] = torch.arange(last + 1 - first)
    return found
