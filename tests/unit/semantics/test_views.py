"""Views: pattern and values move together, storage stays shared, gradients move back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, nan, on, poisoned

X = [[1.0, None, 3.0], [None, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (lambda x: x.reshape(3, 2), [[1.0, None], [3.0, None], [5.0, 6.0]]),
        (lambda x: x.view(-1), [1.0, None, 3.0, None, 5.0, 6.0]),
        (lambda x: x.flatten(), [1.0, None, 3.0, None, 5.0, 6.0]),
        (lambda x: x.t(), [[1.0, None], [None, 5.0], [3.0, 6.0]]),
        (lambda x: x.transpose(0, 1), [[1.0, None], [None, 5.0], [3.0, 6.0]]),
        (lambda x: torch.swapaxes(x, 0, 1), [[1.0, None], [None, 5.0], [3.0, 6.0]]),
        (lambda x: x.permute(1, 0), [[1.0, None], [None, 5.0], [3.0, 6.0]]),
        (lambda x: x.movedim(0, 1), [[1.0, None], [None, 5.0], [3.0, 6.0]]),
        (lambda x: x.unsqueeze(1)[:, 0], X),
        (lambda x: x[None].squeeze(0), X),
        (lambda x: x.select(0, 1), [None, 5.0, 6.0]),
        (lambda x: x.narrow(1, 1, 2), [[None, 3.0], [5.0, 6.0]]),
        (lambda x: x.diagonal(), [1.0, 5.0]),
        (lambda x: x.flip(1), [[3.0, None, 1.0], [6.0, 5.0, None]]),
        (lambda x: x.roll(1, 1), [[3.0, 1.0, None], [6.0, None, 5.0]]),
        (lambda x: x.repeat(1, 2), [[1.0, None, 3.0] * 2, [None, 5.0, 6.0] * 2]),
        (lambda x: x.tile(2), [[1.0, None, 3.0] * 2, [None, 5.0, 6.0] * 2]),
        (lambda x: x.repeat_interleave(2, 0), [X[0], X[0], X[1], X[1]]),
        (lambda x: x[0].expand(2, 3), [X[0], X[0]]),
        (lambda x: torch.broadcast_to(x[1], (2, 3)), [X[1], X[1]]),
        (lambda x: x.unfold(1, 2, 1)[0], [[1.0, None], [None, 3.0]]),
        (lambda x: x.unflatten(1, (3, 1)).squeeze(-1), X),
        (lambda x: x.view_as(torch.zeros(3, 2)), [[1.0, None], [3.0, None], [5.0, 6.0]]),
        (lambda x: x.rot90(), [[3.0, 6.0], [None, 5.0], [1.0, None]]),
        (lambda x: torch.atleast_3d(x).squeeze(-1), X),
    ],
)
def test_entries_move(move: Any, expected: Any) -> None:
    x = poisoned(X, requires_grad=True)
    result = move(x)
    assert_entries(result, expected)
    weights = torch.arange(float(result.numel())).double().reshape(result.shape)
    plain = move(x._values)
    (wanted,) = torch.autograd.grad((plain * weights * result.mask).nan_to_num(0, 0, 0).sum(), x._values)
    assert torch.equal(gradient(result * weights, x), wanted.where(x.mask, 0.0))


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (lambda x: x.split(2, 1), [[[1.0, None], [None, 5.0]], [[3.0], [6.0]]]),
        (lambda x: x.chunk(3, 1), [[[1.0], [None]], [[None], [5.0]], [[3.0], [6.0]]]),
        (lambda x: x.unbind(), X),
        (lambda x: torch.tensor_split(x, 2, 1), [[[1.0, None], [None, 5.0]], [[3.0], [6.0]]]),
        (lambda x: torch.hsplit(x, 3), [[[1.0], [None]], [[None], [5.0]], [[3.0], [6.0]]]),
    ],
)
def test_pieces(cut: Any, expected: Any) -> None:
    pieces = cut(poisoned(X))
    assert len(pieces) == len(expected)
    for piece, entries in zip(pieces, expected, strict=True):
        assert_entries(piece, entries)


def test_views_share_storage() -> None:
    data = torch.tensor([[1.0, nan], [3.0, 4.0]])
    x = mg.masked(data, on([1, 0], [1, 1]))
    for view in (x.T, x.view(-1), x[0], x.unsqueeze(0), x.detach(), x.expand(2, 2, 2)):
        assert view.get_mask().untyped_storage().data_ptr() == x.mask.untyped_storage().data_ptr()
        assert view._values.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()


def test_the_values_must_be_viewable_an_expanded_mask_need_not() -> None:
    x = mg.masked(torch.arange(6.0).reshape(2, 3), on([1, 0, 1]))
    assert_entries(x.view(6), [0.0, None, 2.0, 3.0, None, 5.0])
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.T.view(6)


def test_a_view_as_another_dtype_needs_its_size() -> None:
    assert_entries(poisoned([1, None], torch.int32).view(torch.float32), [1.4e-45, None], dtype=torch.float32)
    with pytest.raises(TypeError, match=r"same size, 4 bytes, found torch.int8; .*Use view before"):
        poisoned([1, None], torch.int32).view(torch.int8)


def test_the_parts_of_a_complex_number_share_its_mask() -> None:
    z = poisoned([1 + 2j, None], torch.complex64)
    assert_entries(torch.view_as_real(z), [[1.0, 2.0], [None, None]])
    assert_entries(torch.view_as_complex(poisoned([[1.0, 2.0], [3.0, None]], torch.float32)), [1 + 2j, None])


def test_a_plain_tensor_only_borrows_the_shape() -> None:
    assert_entries(torch.arange(6.0).view_as(poisoned(X)), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
