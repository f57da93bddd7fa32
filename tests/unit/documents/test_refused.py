"""What is refused says what to write, and the line at the end of each message does it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import maskgrad as mg

X, IDS = torch.arange(4.0).reshape(1, 4), torch.tensor([[0, 0, 1, 1]])
AGAIN, LOSSES, UNIT = torch.tensor([[0, 1, 0, -1]]), mg.masked(X), "seq-mean-token-sum-norm"
BY_DOCUMENT = mg.unpack_documents(X, IDS)
JUMPING, GAPS = torch.tensor([[0, 1, 3, 0]]), torch.tensor([[0, 1, 1, 2]])
COUNTED = torch.tensor([[True, True, False, True]])
#: a function, its arguments, the message, and of documents what the line gives, as their lengths
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str, list[int] | None]] = [
    (mg.unpack_documents, {"segment_ids": AGAIN}, "segment 0 returns at position 2 of row 0", [1, 1, 1]),
    (mg.unpack_documents, {"segment_ids": IDS, "position_ids": IDS}, "in 2 ways, segment_ids and position_ids", [2, 2]),
    (mg.unpack_documents, {}, "nothing says where documents are", [2, 2]),
    (mg.unpack_documents, {"segment_ids": IDS > 0}, "must be a tensor of integers, found torch.bool", [2]),
    (mg.unpack_documents, {"position_ids": JUMPING}, "position 3 at 2 of row 0", [3, 1]),
    (mg.unpack_documents, {"position_ids": GAPS, "mask": COUNTED}, "position 2 at 3 of row 0 neither", [4]),
    (mg.unpack_documents, {"cu_seqlens": torch.tensor([0, 2, 4])}, "from 0 to the number of rows, 1; .* 4", [2, 2]),
    (mg.unpack_documents, {"segment_ids": IDS, "sizes": (3, 4)}, r"2 documents of 4 tokens, .* \(3, 4\)", [2, 2]),
    (mg.aggregate, {"losses": LOSSES, "how": "mean"}, "how must be one of 'token-mean', .* found 'mean'", None),
    (mg.aggregate, {"losses": X, "how": "token-mean"}, "which entries of plain losses count is unknown", None),
    (mg.aggregate, {"losses": LOSSES, "how": UNIT}, "constant belongs to .* it is missing", None),
    (mg.aggregate, {"losses": LOSSES, "how": "token-mean", "constant": 3.0}, "constant .* not for 'token-mean'", None),
    (mg.aggregate, {"losses": LOSSES, "how": UNIT, "constant": 0}, "positive number, found 0", None),
    (mg.aggregate, {"losses": BY_DOCUMENT, "how": "token-mean", "documents": IDS}, "for each document already", None),
    (mg.aggregate, {"losses": X.long(), "how": "token-mean", "documents": IDS}, "floating-point .* torch.int64", None),
    (mg.block_mask, {"segment_ids": IDS, "window": 0}, "itself too, found 0", None),
    (mg.block_mask, {"lengths": [4]}, "lengths must be a tensor of integers", None),
    (mg.interop.pack, {"lengths": [3, 9], "budget": 8}, "sample 1 has length 9, not from 0 to the budget of 8", None),
    (mg.interop.pack, {"lengths": [3.0], "budget": 8}, r"must be integers \(N,\), found torch.float32", None),
    (mg.interop.pack, {"lengths": [3], "budget": 8.5}, "budget must be 1 or more, found 8.5", None),
    (mg.interop.pack, {"lengths": [3], "budget": 8, "ranks": 0}, "ranks must be 1 or more, found 0", None),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given", "message", "lengths"), REFUSED)
def test_the_line_at_the_end_works(
    function: Callable[..., Any], given: dict[str, Any], message: str, lengths: list[int] | None
) -> None:
    if function is mg.unpack_documents:
        given = {"x": X, **given}
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        function(**given)
    line = re.search(r"write (mg\.[\w.]+\(.*\))$", str(caught.value))
    assert line, caught.value
    others = {"segment_ids": IDS, "labels": IDS, "mask": IDS >= 0, "data": [[1, 2]]}
    found = eval(line[1], {"mg": mg, "torch": torch, **others, **given, "constant": 1})
    assert lengths is None or found.lengths().tolist() == lengths


def test_which_shape_is_right_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"\(B, T\) = \(1, 4\), found \(1, 3\); write"):
        mg.unpack_documents(X, segment_ids=IDS[:, :3])
    with pytest.raises(ValueError, match=r"\(B, T\) = \(1, 4\), found \(1, 2\); write"):
        mg.aggregate(X, "token-mean", IDS[:, :2])
    with pytest.raises(ValueError, match=r"padding_id is an id among segment_ids, .*; write"):
        mg.unpack_documents(X, position_ids=IDS, padding_id=0)


def test_sequences_that_do_not_fit() -> None:
    z = mg.unpack_documents(X, segment_ids=IDS)
    shorter = mg.from_offsets(X[0, :3], torch.tensor([0, 2, 3]))
    for sequences, kind, words in (
        (shorter, ValueError, r"document 1 has 2 tokens, .* has 1; write"),
        (z[:1], ValueError, r"z has 1 sequences, and the rows hold 2 documents; write"),
        (mg.masked(torch.ones(2, 3)), ValueError, r"document 0 has 2 tokens, .* 3; write"),
        (X[0], TypeError, r"found Tensor; .* write mg.pack_documents\(mg.from_offsets"),
    ):
        with pytest.raises(kind, match=words) as caught:
            mg.pack_documents(sequences, segment_ids=IDS)  # type: ignore[arg-type]
    line = str(caught.value).partition(" write ")[2]
    assert eval(line, {"mg": mg, "z": X[0], "cu_seqlens": torch.tensor([0, 2, 4])}).tolist() == [0, 1, 2, 3]


def test_accumulators() -> None:
    for how, constant, text in (("other", None, "mean must be"), ("token-mean", 3, "constant belongs to")):
        with pytest.raises(ValueError, match=rf"{text}.*write mg.GradientAccumulator\(model, mean="):
            mg.GradientAccumulator([torch.nn.Parameter(X)], mean=how, constant=constant)  # type: ignore[arg-type]
