"""Cross products, traces, powers of a vector."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, assert_number, gradient, poisoned


class TestCross:
    def test_a_component_needs_four_entries(self) -> None:
        a, b = poisoned([1.0, 2.0, None], requires_grad=True), poisoned([4.0, 5.0, 6.0], requires_grad=True)
        for result in (torch.linalg.cross(a, b), torch.cross(a, b, dim=0), a.cross(b, dim=0)):
            assert_entries(result, [None, None, -3.0])
        assert gradient(result, a).tolist() == [5.0, -4.0, 0.0]
        assert gradient(result, b).tolist() == [-2.0, 1.0, 0.0]

    def test_dimensions_and_broadcasting(self) -> None:
        a = poisoned([[1.0], [0.0], [None]])
        b = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]).double()
        assert_entries(torch.linalg.cross(a, b, dim=0), [[None, None], [None, None], [1.0, 0.0]])
        assert_entries(
            torch.linalg.cross(other=b.T, input=poisoned([[None, 0.0, 0.0]])), [[0.0, None, None]] * 2
        )

    @pytest.mark.filterwarnings("ignore:Using torch.cross without")
    def test_without_dim_torch_takes_the_first_of_size_three(self) -> None:
        a = poisoned([[1.0, 1.0], [2.0, 1.0], [None, 1.0]])
        assert_entries(torch.cross(a, torch.ones(3, 2).double()), [[None, 0.0], [None, 0.0], [-1.0, 0.0]])

    @pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
    def test_garbage_makes_no_anomaly(self) -> None:
        a = poisoned([1.0, 2.0, None], requires_grad=True)
        with torch.autograd.detect_anomaly():
            gradient(torch.linalg.cross(a, a.flip(0)), a)


def test_trace() -> None:
    x = poisoned([[1.0, None, 1.0], [None, None, 1.0], [1.0, 1.0, 4.0]], requires_grad=True)
    assert_number(x.trace(), 5.0)
    assert gradient(torch.trace(x), x).tolist() == [[1.0, 0.0, 0.0], [0.0] * 3, [0.0, 0.0, 1.0]]
    nothing = poisoned([[None, 1.0], [1.0, None]], requires_grad=True)
    assert_nothing(torch.trace(nothing), 0.0, nothing)
    assert_entries(poisoned([[1, None], [None, 2]], torch.int32).trace(), 3, torch.int64)
    with pytest.raises(RuntimeError, match="matrix"):
        poisoned([1.0, None]).trace()


def test_vander() -> None:
    x = poisoned([2.0, None, 3.0], requires_grad=True)
    assert_entries(torch.linalg.vander(x), [[1.0, 2.0, 4.0], [None] * 3, [1.0, 3.0, 9.0]])
    assert gradient(torch.linalg.vander(x, N=3), x).tolist() == [5.0, 0.0, 7.0]
    assert_entries(torch.vander(x, 2), [[2.0, 1.0], [None] * 2, [3.0, 1.0]])
    assert_entries(torch.vander(x, 2, True), [[1.0, 2.0], [None] * 2, [1.0, 3.0]])


def test_compiled() -> None:
    f = torch.compile(
        lambda x: (x.trace(), torch.linalg.cross(x, x.flip(-1)), torch.linalg.vander(x)),
        fullgraph=True,
        backend="eager",
    )
    x = mg.masked(torch.ones(3, 3), torch.eye(3).bool())
    for found, expected in zip(
        f(x), (x.trace(), torch.linalg.cross(x, x.flip(-1)), torch.linalg.vander(x)), strict=True
    ):
        assert type(found) is type(expected)
        if isinstance(found, mg.MaskedTensor):
            assert torch.equal(found.mask, expected.mask)
        pair = [part.filled(0) if isinstance(part, mg.MaskedTensor) else part for part in (found, expected)]
        torch.testing.assert_close(*pair)
