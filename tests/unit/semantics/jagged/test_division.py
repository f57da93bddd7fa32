"""Parts of the sequences, and of the positions, of a jagged batch."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg

LENGTHS = torch.tensor([1, 3, 0, 2])

CUTS = [
    ("narrow", (0, 1, 2), {}),
    ("narrow", (-3, -1, 1), {}),
    ("narrow", (1, 0, 0), {}),
    ("narrow", (), {"dim": 1, "start": 0, "length": 2}),
    ("split", (2,), {}),
    ("split", ([1, 0, 3],), {}),
    ("split", (2, 1), {}),
    ("split_with_sizes", ([1, 3],), {}),
    ("unsafe_split", (2,), {"dim": 1}),
    ("chunk", (3,), {}),
    ("chunk", (2, 1), {}),
    ("tensor_split", (3,), {}),
    ("tensor_split", ((1, 2),), {"dim": 1}),
]


@pytest.mark.parametrize(("name", "args", "options"), CUTS)
@pytest.mark.parametrize("swapped", [False, True])
def test_parts_stay_rows(name, args, options, swapped) -> None:
    values = torch.randn(4, 4, 5, dtype=torch.float64, requires_grad=True)
    where = torch.arange(4) < LENGTHS[:, None]
    padded = torch.where(where[..., None], values, torch.nan)
    found = []
    for layout in (torch.jagged, torch.strided):
        x = mg.from_lengths(padded, LENGTHS, layout=layout)
        parts = getattr(x.transpose(1, 2).transpose(2, 1) if not swapped else x.transpose(0, 1), name)(
            *args, **options
        )
        found.append(list(parts) if isinstance(parts, (tuple, list)) else [parts])
    gradients = []
    for part, expected in zip(*found, strict=True):
        assert part.layout == torch.jagged
        assert part.shape == expected.shape
        assert torch.equal(part.mask, expected.mask)
        assert torch.equal(part.filled(0.0), expected.filled(0.0))
        sums = [p.square().sum() for p in (part, expected)]
        gradients.append([torch.autograd.grad(s, values, retain_graph=True)[0] for s in sums])
    for one, other in gradients:
        torch.testing.assert_close(one, other, equal_nan=False)


def test_in_a_graph() -> None:
    def run(x):
        first, second = x.split(2, 1)
        return first.sum() + 2 * second.sum()

    x = mg.from_lengths(torch.arange(24.0).view(4, 3, 2), LENGTHS, layout=torch.jagged)
    assert torch.compile(run, backend="eager", fullgraph=True)(x) == run(x)
