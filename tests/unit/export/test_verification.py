"""Other inputs: other masks, garbage under each, other sizes."""

from __future__ import annotations

import torch

import maskgrad as mg
from maskgrad.export.ports import unpack
from maskgrad.export.verification import variations


def test_masks_change_and_garbage_lies_under_each() -> None:
    x = mg.masked(torch.tensor([5.0, float("inf"), 7.0]), torch.tensor([True, False, True]))
    plain = torch.tensor([True, False])
    ports, tensors = unpack(((x, plain), {}), "args")
    found = {words: [t.tolist() for t in given] for words, given in variations(ports, tensors, [])}
    text = {words: str(given) for words, given in found.items()}
    assert text == {
        "as given, with garbage under the masks": "[[5.0, nan, 7.0], [True, False, True], [True, False]]",
        "with nothing specified": "[[nan, nan, nan], [False, False, False], [False, False]]",
        "with everything specified": "[[5.0, 5.0, 7.0], [True, True, True], [True, True]]",
        "with the masks inverted": "[[nan, 5.0, nan], [False, True, False], [False, True]]",
    }


def test_sizes_change_together_and_a_sparse_layout_loses_an_entry() -> None:
    given = unpack(((torch.arange(2), torch.arange(6).reshape(3, 2)), {}), "args")
    _, one, more = variations(*given, [{0: 0, 1: 1}])
    assert [t.tolist() for t in one[1]] == [[0], [[0], [2], [4]]]
    assert [t.tolist() for t in more[1]] == [[0, 1, 0], [[0, 1, 0], [2, 3, 2], [4, 5, 4]]]
    assert more[0] == "with size 3 instead of 2 in a dynamic dimension"
    x = mg.masked(torch.ones(2, 2), torch.eye(2) > 0).to_sparse()
    *_, (words, (values, indices)) = variations(*unpack(((x,), {}), "args"), [{0: 0, 1: 1}])
    assert (words, values.shape, indices.shape) == ("with one stored entry less", (1,), (2, 1))
