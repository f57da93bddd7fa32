"""All layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.patterns.conversion import STORAGES, pattern_of_places
from tests.poison import on
from tests.unit.patterns.suite import LayoutSuite

SOME = on([0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0])
NOTHING, ALL = torch.zeros(4, 6).bool(), torch.ones(4, 6).bool()
MATRICES = {
    "some": SOME,
    "nothing": NOTHING,
    "all": ALL,
    "one": NOTHING.clone().index_put((torch.tensor(2), torch.tensor(3)), torch.tensor(True)),
    "no rows": ALL[:0],
    "no columns": ALL[:, :0],
}
BATCHED = torch.stack([SOME, SOME.flip(1)])


def blocks(height: int, width: int, *rows: Any) -> Tensor:
    """Whole blocks."""
    return on(*rows).repeat_interleave(height, -2).repeat_interleave(width, -1)


def lengths(longest: int, *numbers: Any) -> Tensor:
    """Sequences that are specified in their first positions."""
    return torch.arange(longest) < torch.tensor(numbers).unsqueeze(-1)


def whole(mask: Tensor, *sizes: int) -> Tensor:
    """With dimensions that are stored whole."""
    return mask.reshape(*mask.shape, *(1,) * len(sizes)).expand(*mask.shape, *sizes)


def put(mask: Tensor, **options: Any) -> Callable[[], Any]:
    return lambda: mg.masked(torch.ones(mask.shape), mask).to_sparse(**options)


def with_last(change: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Another last tensor."""
    return lambda v, f, t: (v, f, [*t[:-1], change(t[-1])])


def with_first(change: Callable[[Tensor], Any]) -> Callable[..., Any]:
    return lambda v, f, t: (v, f, [change(t[0]), *t[1:]])


def put_last(number: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.index_fill(-1, torch.tensor([-1]) % t.shape[-1], number)


#: Damages to any list of places.
DAMAGED: dict[str, tuple[Callable[..., Any], str]] = {
    "below": (with_last(put_last(-1)), "found index -1"),
    "above": (with_last(put_last(9)), "found index 9"),
    "floats": (with_last(torch.Tensor.double), r"dtype torch\.int64 or torch\.int32, found torch\.float64; use"),
    "fewer values": (lambda v, f, t: (v[:-1], f, t), "values must"),
    "sizes": (lambda v, f, t: (v, (f[0], (-3, *f[1][1:]), f[2]), t), "nonnegative"),
    "sizes too large": (lambda v, f, t: (v, (f[0], (2**40,) * len(f[1]), f[2]), t), "fits into int64|shapes"),
    "one tensor more": (lambda v, f, t: (v, f, [*t, t[0]]), r"has \d tensors, found \d"),
    "elsewhere": (with_last(lambda t: t.to("meta")), "on one device"),
    "sparse values": (lambda v, f, t: (v.to_sparse(), f, t), "strided"),
    "another layout": (lambda v, f, t: (v, ("sparse_xyz", *f[1:]), t), "layout"),
}  # fmt: skip
LINES = {
    **DAMAGED,
    "pointers that fall": (
        with_first(lambda t: t.flip(-1)),
        "must ascend from 0 to the number of stored positions",
    ),
    "pointers that begin late": (with_first(lambda t: t + 1), "must ascend from 0"),
    "pointers of floats": (with_first(torch.Tensor.double), "pointers must have dtype"),
    "one line more": (with_first(lambda t: torch.cat([t, t[..., -1:]], -1)), "must have shapes"),
    "a place twice": (with_last(torch.zeros_like), "must ascend strictly within each line"),
}
TWO_DIMENSIONS = {
    "a vector": (put(on(1, 0), layout=torch.sparse_csr), ValueError, "at least 2 sparse .*sparse_coo")
}


class TestBooleanMask(LayoutSuite):
    layout = torch.strided
    masks: ClassVar = {
        **MATRICES, "of two dimensions of a batch": BATCHED, "expanded": on([1, 0, 1]).expand(2, 3),
        "vector": on(1, 0, 1), "turned": SOME.T, "number": on(1)[0], "no number": on(0)[0],
    }  # fmt: skip
    is_written = True


class TestCoordinates(LayoutSuite):
    layout = torch.sparse_coo
    masks: ClassVar = {
        **MATRICES, "of three dimensions": BATCHED, "vector": on(1, 0, 1), "number": on(1)[0], "no number": on(0)[0],
    }  # fmt: skip
    damages: ClassVar = {
        **DAMAGED,
        "another order": (with_first(lambda t: t.flip(-1)), "row-major order without duplicates"),
        "a place twice": (with_first(torch.zeros_like), "row-major order without duplicates"),
        "of one dimension": (with_first(lambda t: t[:1]), r"shape \(2, n\)"),
        "a block size": (lambda v, f, t: (v, (*f[:2], (1, 1)), t), "block size"),
    }
    refused: ClassVar = {
        "a block size": (put(SOME, blocksize=(2, 2)), ValueError, "blocksize must be None"),
        "an unknown layout": (put(SOME, layout=torch._mkldnn), ValueError, "layout must be one of"),
        "a part of a row": (put(SOME, dense_dim=1), ValueError, r"partially specified, the first at \(0,\); use"),
        "places beyond int64": (
            lambda: pattern_of_places(torch.zeros(3, 1).long(), (2**31, 2**31, 4), torch.sparse_coo),
            ValueError, "more than int64 can hold",
        ),
    }  # fmt: skip
    is_torchs = True
    reads = ("indices",)


class TestCoordinatesOfRows(LayoutSuite):
    layout = torch.sparse_coo
    dense = 1
    options: ClassVar = {"dense_dim": 1}
    masks: ClassVar = {
        "some": whole(SOME, 2), "rows": whole(on(1, 0, 1, 0), 3), "no rows": whole(ALL[:0], 2),
        "nothing": whole(NOTHING, 2), "all": whole(ALL, 2),
    }  # fmt: skip
    damages: ClassVar = {"fewer values": DAMAGED["fewer values"]}
    is_torchs = True
    reads = ("indices",)


class TestRows(LayoutSuite):
    layout = torch.sparse_csr
    masks: ClassVar = {**MATRICES, "batch": BATCHED}
    damages = LINES
    refused: ClassVar = {
        **TWO_DIMENSIONS,
        "an uneven batch": (put(BATCHED & SOME, layout=torch.sparse_csr), ValueError,
                            r"same number of entries.*between 4 and 6; use torch\.sparse_coo"),
        "a block size": (put(SOME, layout=torch.sparse_csr, blocksize=(1, 1)), ValueError, "blocksize must be None"),
    }  # fmt: skip
    is_torchs = True
    reads = ("crow_indices", "col_indices")
    turned = torch.sparse_csc


class TestColumns(LayoutSuite):
    layout = torch.sparse_csc
    masks: ClassVar = {**MATRICES, "batch": BATCHED}
    damages = LINES
    refused = TWO_DIMENSIONS
    is_torchs = True
    reads = ("ccol_indices", "row_indices")
    turned = torch.sparse_csr


PARTIAL = r"1 blocks of size \(4, 6\) are specified only in part, the first at \(0, 0\)"
BLOCKS = {
    "some": blocks(2, 3, [1, 0], [0, 1], [1, 1]), "nothing": blocks(2, 3, [0, 0]), "all": blocks(2, 3, [1, 1]),
    "no rows": ALL[:0], "no columns": ALL[:, :0],
}  # fmt: skip


class TestBlocksByRow(LayoutSuite):
    layout = torch.sparse_bsr
    options: ClassVar = {"blocksize": (2, 3)}
    masks: ClassVar = {**BLOCKS, "batch": blocks(2, 3, [[1, 0], [1, 1]], [[1, 1], [0, 1]])}
    damages: ClassVar = {
        **LINES,
        "no block size": (lambda v, f, t: (v, (*f[:2], None), t), "block size"),
        "another block size": (
            lambda v, f, t: (v, (*f[:2], (3, 2)), t),
            r"values must have blocks|must have shapes",
        ),
        "a block that does not fit": (lambda v, f, t: (v, (*f[:2], (4, 3)), t), "does not fit sizes"),
    }
    refused: ClassVar = {
        "no block size": (
            put(SOME, layout=torch.sparse_bsr),
            ValueError,
            "blocksize must be two positive numbers",
        ),
        "no divisor": (
            put(SOME, layout=torch.sparse_bsr, blocksize=(3, 2)),
            ValueError,
            r"\(4, 6\), found \(3, 2\)",
        ),
        "size zero": (put(SOME, layout=torch.sparse_bsr, blocksize=(0, 2)), ValueError, "must divide"),
        "a block in part": (put(SOME, layout=torch.sparse_bsr, blocksize=(4, 6)), ValueError, PARTIAL),
    }
    is_torchs = True
    reads = ("crow_indices", "col_indices")
    turned = torch.sparse_bsc


class TestBlocksByColumn(TestBlocksByRow):
    layout = torch.sparse_bsc
    refused: ClassVar = {}
    reads = ("ccol_indices", "row_indices")
    turned = torch.sparse_bsr


SEQUENCES = {
    "some": lengths(6, 3, 0, 6, 1), "nothing": NOTHING, "all": ALL, "no rows": ALL[:0], "no positions": ALL[:, :0],
}  # fmt: skip


class TestSequences(LayoutSuite):
    layout = torch.jagged
    masks: ClassVar = {**SEQUENCES, "of several batches": lengths(4, [1, 4, 0], [2, 2, 1])}
    damages: ClassVar = {
        "offsets that fall": (with_first(lambda t: t.index_fill(0, torch.tensor(1), 9)), "decrease from 9"),
        "offsets that end early": (with_first(lambda t: t - 1), "begin with -1"),
        "offsets of floats": (with_first(torch.Tensor.double), "offsets must have dtype"),
        "one sequence more": (with_first(lambda t: torch.cat([t, t[-1:]])), "does not hold 5 sequences"),
        "other places": (lambda v, f, t: (v, f, [t[0], t[1].flip(0), t[2]]), "index does not match"),
        "places of floats": (lambda v, f, t: (v, f, [t[0], t[1].double(), t[2]]), "index must have dtype"),
        "fewer places": (lambda v, f, t: (v, f, [t[0], t[1][:-1], t[2]]), "index does not match"),
        "fewer rows": (lambda v, f, t: (v[:-1], f, t), "number of rows, 9"),
        "no rows": (lambda v, f, t: (v.sum(), f, t), "needs rows"),
        "a frame of numbers": (with_last(torch.Tensor.double), "Boolean frame"),
        "a frame too short": (with_last(lambda t: t[:, :2]), "a sequence has 6 positions, the frame 2"),
        "a frame of one dimension": (with_last(lambda t: t[0]), "Boolean frame"),
        "a frame of too few": (lambda v, f, t: (v, (f[0], (0, 1, 2), None), t), "Boolean frame"),
        "a dimension twice": (lambda v, f, t: (v, (f[0], (1, 1), None), t), "different positions"),
        "a dimension too far": (lambda v, f, t: (v, (f[0], (0, 3), None), t), "different positions"),
        "a block size": (lambda v, f, t: (v, (*f[:2], (1, 1)), t), "block size"),
        "a tensor more": (lambda v, f, t: (v, f, [*t, t[0]]), "3 tensors, found 4"),
        "another layout": (lambda v, f, t: (v, ("sparse_coo", *f[1:]), t), "has 1 tensors, found 3"),
    }  # fmt: skip
    refused: ClassVar = {
        "a vector": (put(on(1, 0), layout=torch.jagged), ValueError, r"batch and a ragged .*use x\.unsqueeze\(0\)"),
        "a gap": (put(SOME, layout=torch.jagged), ValueError,
                  r"sequence 0 is masked at position 0, and specified after it; use a Boolean mask"),
    }  # fmt: skip


class TestSequencesOfFeatures(LayoutSuite):
    layout = torch.jagged
    dense = 1
    masks: ClassVar = {name: whole(mask, 2) for name, mask in SEQUENCES.items()}

    def made(self, data: Tensor, mask: Tensor) -> mg.MaskedTensor:
        return mg.masked(data, mask).to_jagged()


def test_every_layout_is_declared() -> None:
    declared = {kind.layout for kind in globals().values() if isinstance(kind, type) and kind is not LayoutSuite
                and issubclass(kind, LayoutSuite)}  # fmt: skip
    assert {str(layout).removeprefix("torch.") for layout in declared} == set(STORAGES)
