"""Where torch.masked is right, mg.functional agrees with it: same names, same arguments, same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg

REDUCTIONS = ("sum", "mean", "prod", "var", "std", "amax", "amin", "argmax", "argmin", "logsumexp")
ALONG = ("softmax", "log_softmax", "softmin", "cumsum", "cumprod")


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.rand(4, 5) < 0.6
    mask[:, 0] = True  # torch.masked and ours may differ in empty slots, whose content is free
    mask[0] = True
    return torch.randn(4, 5), mask


def _compare(name: str, *arguments: Any, **keywords: Any) -> None:
    data, mask = _data()
    ours = getattr(mg.functional, name)(data, *arguments, mask=mask, **keywords)
    theirs = getattr(torch.masked, name)(data, *arguments, mask=mask, **keywords)
    if name in ALONG or name == "normalize":
        ours, theirs = ours[mask], theirs[mask]
    if name.startswith("arg"):
        theirs = theirs.long()  # torch.masked returns positions as floats
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(name: str, dim: int, keepdim: bool) -> None:
    _compare(name, dim, keepdim=keepdim)


@pytest.mark.parametrize("ord", [0.5, 1.0, 2.0, 3.0, float("inf"), float("-inf")])
def test_norms(ord: float) -> None:
    _compare("norm", ord, 1)


@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_and_relatives(name: str, dim: int) -> None:
    _compare(name, dim)


@pytest.mark.parametrize("unbiased", [False, True])
def test_variances(unbiased: bool) -> None:
    _compare("var", 1, unbiased)
    _compare("std", 1, unbiased)


def test_normalize() -> None:
    _compare("normalize", 2.0, 1)


def test_logaddexp() -> None:
    (x, m), (y, n) = _data(), _data()
    ours = mg.functional.logaddexp(x, y, input_mask=m, other_mask=n)
    theirs = torch.masked.logaddexp(x, y, input_mask=m, other_mask=n)
    torch.testing.assert_close(ours[m | n], theirs[m | n])


def test_medians() -> None:
    _compare("median", 1)
    _compare("median", 0, keepdim=True)
