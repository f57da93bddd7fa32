"""What is read of a tensor: mask, numbers, text, dtypes, devices, and never what lies under the mask."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.unit.patterns.suite.declaration import Declaration, assert_same

DTYPES = (torch.float64, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.complex64)


class Reading(Declaration):
    def test_numbers_are_read(self, example: str) -> None:
        x, data, mask = self.of(example)
        plain = mg.masked(data, mask)
        assert x.mask.dtype == torch.bool
        assert x.num_specified() == mask.sum()
        assert torch.equal(torch.sort(x.compressed()).values, torch.sort(data[mask]).values)
        for number in (0, -1.5, float("nan")):
            torch.testing.assert_close(
                x.filled(number), torch.where(mask, data, number), rtol=0, atol=0, equal_nan=True
            )
        (slope,) = torch.autograd.grad(x.filled(3.0).sum(), data)
        assert torch.equal(slope, mask.double())
        assert x.tolist() == plain.tolist()
        assert torch.equal(x, plain)
        assert torch.allclose(x, plain)
        assert (x.shape, x.ndim, x.numel(), x.size()) == (mask.shape, mask.ndim, mask.numel(), mask.shape)
        assert (x.dtype, x.type(), x.device) == (torch.float64, "torch.DoubleTensor", torch.device("cpu"))
        assert (x.is_floating_point(), torch.is_complex(x)) == (True, False)

    def test_text(self, example: str) -> None:
        """That of a Boolean mask, and the layout."""
        x, data, mask = self.of(example)
        for function in (torch.exp, lambda y: y.detach().requires_grad_()):
            shown, expected = repr(function(x)), repr(function(mg.masked(data, mask)))
            if self.layout != torch.strided:
                assert f", layout={self.layout}" in shown
            assert shown.replace(f", layout={self.layout}", "") == expected
        assert "meta" in repr(x.to("meta"))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_dtypes(self, dtype: torch.dtype) -> None:
        x, data, mask = self.of("some")
        like = torch.zeros(1, dtype=dtype)
        for found in (x.to(dtype), x.type(dtype), x.to(like), x.type_as(like), x.to("cpu", dtype)):
            assert found.layout == self.layout
            assert_same(found, torch.where(mask, data, 0).to(dtype), mask)
        if dtype.is_floating_point:
            (slope,) = torch.autograd.grad((x.to(dtype) * 2).sum(), data)
            assert torch.equal(slope, 2 * mask.double())
        y, own, _ = self.of("some", dtype)
        assert_same(y.cdouble(), own.cdouble(), mask)
        assert_same(y.clone(), own, mask)

    def test_the_pattern_follows_to_the_device(self, example: str) -> None:
        x = self.of(example).x
        y = x.to("meta")
        assert (y.layout, y.shape, y.dtype) == (x.layout, x.shape, x.dtype)
        assert {t.device.type for t in (y, *y._pattern.tensors(), (y * 2).exp())} == {"meta"}

    def test_memory(self) -> None:
        x = self.of("some").x.detach()
        assert x.contiguous()._values.data_ptr() == x._values.data_ptr()
        assert x.clone()._values.data_ptr() != x._values.data_ptr()
        if self.layout == torch.strided:
            assert x.clone().mask.data_ptr() != x.mask.data_ptr()
            assert (x.stride(), x.data_ptr()) == (x._values.stride(), x._values.data_ptr())
            return
        for ask in (x.stride, x.data_ptr):
            with pytest.raises(
                mg.errors.UnsupportedLayoutError, match=rf"layout {self.layout}\. .*x\.to_dense\(\)"
            ):
                ask()
