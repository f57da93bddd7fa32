"""Distances: torch's own between the coordinates that both vectors specify."""

from __future__ import annotations

import pytest
import torch

from tests.poison import assert_entries, assert_nothing, assert_number, gradient, inf, poisoned


def test_dist_of_nothing_is_zero_or_unspecified_where_an_empty_tensor_has_none() -> None:
    a, b = poisoned([1.0, None], requires_grad=True), poisoned([None, 1.0], requires_grad=True)
    for p in (0.5, 2):
        assert_nothing(a.dist(b, p), 0.0, a, b)
    assert_number(a.dist(b, 0), 0.0)
    for p in (inf, -inf, -1):
        with pytest.raises(RuntimeError):
            torch.dist(torch.zeros(0), torch.zeros(0), p)
        assert_entries(a.dist(b, p), None)
        assert gradient(torch.dist(a, b, p), a).tolist() == [0.0, 0.0]
