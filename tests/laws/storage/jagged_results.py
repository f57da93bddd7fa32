"""When the result of a jagged operand is jagged: batch and ragged dimension stay, and the rule keeps the rows."""

from __future__ import annotations

from typing import Any

import torch

from tests.laws.storage.expectations import Operation, World, like_intersection, same
from tests.laws.storage.layouts import COO, JAGGED, Storage

__all__ = ["layout_of_result"]

#: Operations that reach along one dimension, and leave each row to itself if that is one of features.
ALONG = {
    **dict.fromkeys(
        ("select", "x[0]", "x[-1]", "unbind"), 0
    ),
    **dict.fromkeys(("x[:, 0]",), 1),
    **dict.fromkeys(
        ("minus mean", "var_mean", "sum dtype", "p-norm", "linalg.norm 3", "max dim", "min dim",
         "index_select", "cat last"), -1
    ),
    "std unbiased": 0,
}  # fmt: skip
#: … those that cut sequences, positions or features into parts, …
DIVIDED = {"narrow": 0, "split": 0, "tensor_split": 0, "chunk": -1}
#: … those that choose sequences, …
SEQUENCES = {"x[1:]": 0, "x[::2]": 0, "x[tensor]": 0, "x[[2, 0, 2]]": 0, "x[rows]": 0, "x[..., 1:]": -1}
#: … those that choose positions that lie together, …
POSITIONS = {"x[1:]": 0, "x[..., 1:]": -1}
#: … products over the last dimension, …
PRODUCTS = ("x @ dense", "dense @ x", "x @ vector", "vector @ x", "x @ batch", "mm", "linear input")
#: … those that choose sequences in any order, …
MOVED = {"index_select": -1}
#: … and those that only say where the dimensions stand.
MOVES = ("mT", "transpose 0 1", "movedim", "unsqueeze 0", "unsqueeze -1", "squeeze", "expand", "x[:, None]", "stack 1",
         "where same", "T", "t", "permute", "unflatten")  # fmt: skip
#: Those that put all dimensions into one, …
FLATTENED = ("flatten", "reshape")
#: … and those that need the same lengths for it.
SAME_LENGTHS = ("stack", "where")


def layout_of_result(operation: Operation, storage: Storage, masks: World, rank: int) -> torch.layout:
    """What comes of an operand on the storage; on a Boolean mask if it is no prefix of each sequence any more."""
    if storage.layout != JAGGED:
        return operation.layout(storage, rank)
    if operation.nothing is not None:
        return torch.strided
    other = storage.other()
    if asks_for_other(operation, masks) and other.layout != JAGGED:
        return (
            COO if other.layout == COO and operation.layout(other, rank) != torch.strided else torch.strided
        )
    return JAGGED if keeps_rows(operation, storage) else torch.strided


def asks_for_other(operation: Operation, masks: World) -> bool:
    asked = []

    class Asked:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(masks, name)

    operation.mask(Asked())  # type: ignore[arg-type]
    return "other" in asked


def keeps_rows(operation: Operation, storage: Storage) -> bool:
    name, rank = operation.name, len(storage.shape)
    *batch, ragged = storage.places
    same_lengths = torch.equal(storage.mask, storage.other().mask)
    if operation.layout == like_intersection:  # flattened sequences know no shorter ones
        return not storage.is_flat or same_lengths
    if operation.layout == same or name in MOVES:
        return True
    if name in FLATTENED:
        return not storage.dense and storage.places == tuple(range(rank))
    if name in DIVIDED:
        return DIVIDED[name] % rank not in storage.places or (
            len(storage.places) == 2 and not storage.is_flat
        )
    if name in SAME_LENGTHS:
        return same_lengths
    if name == "cat":
        return batch == [0]
    if name in PRODUCTS:  # over features; for each sequence or position there may be another matrix
        return (rank - 1) not in storage.places
    if name == "minus mean":  # of each sequence, or of a row
        return (rank - 1) not in (storage.places if storage.is_flat else batch)
    if name in MOVED and batch == [MOVED[name] % rank] and not storage.is_flat:
        return True
    along = ALONG.get(name, -1 if name.endswith(" last") else None)
    if name.endswith((" first", " keepdim")):
        along = 0
    if along is not None:
        return along % rank not in storage.places
    if name in SEQUENCES and (
        SEQUENCES[name] % rank not in storage.places or batch == [SEQUENCES[name] % rank]
    ):
        return True
    return name in POSITIONS and not storage.is_flat and POSITIONS[name] % rank == ragged
