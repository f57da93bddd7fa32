"""Convolutions: padding, bias, modules and exports that no law draws; a refused layout of time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, inf, on, poisoned


def test_infinite_weights_without_partners() -> None:
    w = torch.tensor([[[inf, 1.0]]]).double()
    assert_entries(F.conv1d(poisoned([[[None, 2.0, None]]]), w), [[[2.0, inf]]])


def test_time_first_is_refused_with_the_line_to_write() -> None:
    x, w, b = (
        mg.masked(torch.randn(4, 1, 2), on(1, 0, 1, 1)[:, None, None]),
        torch.randn(3, 2, 2),
        torch.zeros(2),
    )
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"F.conv1d\(x.permute"):
        torch.conv_tbc(x, w, b, 1)
    plain = torch.randn(4, 1, 2)
    torch.testing.assert_close(
        torch.conv_tbc(plain, w, b, 1),
        F.conv1d(plain.permute(1, 2, 0), w.permute(2, 1, 0), b, padding=1).permute(2, 0, 1),
    )


def test_an_exported_dilated_convolution_takes_any_length() -> None:
    class Dilated(nn.Module):
        def forward(self, values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found = F.conv1d(mg.masked(values, mask), torch.ones(1, 2, 3), padding=3, dilation=3)
            return found.filled(0.0), found.mask

    length = torch.export.Dim("length")
    values, mask = torch.randn(2, 2, 9), torch.rand(2, 2, 9) < 0.6
    exported = torch.export.export(Dilated(), (values, mask), dynamic_shapes=({2: length}, {2: length}))
    for n in (2, 9):
        given = values[..., :n], mask[..., :n]
        torch.testing.assert_close(exported.module()(*given), Dilated()(*given))
