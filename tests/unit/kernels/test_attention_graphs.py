"""Attention over packed rows in graphs, under transforms, and where FlashAttention takes it over."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.kernels import ragged_scaled_dot_product_attention, use_kernels
from maskgrad.kernels.attention import attended, varlen
from tests.unit.kernels.attention_by_loop import by_loop, offsets_of, twice


def test_export_with_any_number_of_rows_and_sequences() -> None:
    class Module(torch.nn.Module):
        def forward(self, query: Tensor, offsets: Tensor) -> Tensor:
            return ragged_scaled_dot_product_attention(query, query, query, offsets, offsets, 7, 7)

    rows, sequences = torch.export.Dim("rows", max=1000), torch.export.Dim("sequences", min=3, max=100)
    inputs = torch.randn(9, 2, 4), offsets_of([2, 7, 0])
    shapes = {"query": {0: rows}, "offsets": {0: sequences}}
    program = torch.export.export(Module(), inputs, dynamic_shapes=shapes)
    assert not any("maskgrad" in str(node.target) for node in program.graph.nodes)
    others = torch.randn(13, 2, 4), offsets_of([0, 7, 1, 5])
    torch.testing.assert_close(program.module()(*others), Module()(*others))


def test_transforms_run_the_reference() -> None:
    offsets = offsets_of([2, 0, 3])
    query, key, value = (torch.randn(5, 2, 3, dtype=torch.float64) for _ in range(3))

    def attend(x: Tensor) -> Tensor:
        return ragged_scaled_dot_product_attention(x, key, value, offsets, offsets, 3, 3)

    several = torch.stack([query, -query])
    torch.testing.assert_close(torch.func.vmap(attend)(several), torch.stack([attend(x) for x in several]))
    expected = torch.autograd.functional.jacobian(attend, query)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(attend)(query), expected)
    with use_kernels("cpu"):
        found = attend(leaf := query.clone().requires_grad_())
    grads = torch.randn(3, *found.shape, dtype=torch.float64)
    (together,) = torch.autograd.grad(found, leaf, grads, is_grads_batched=True)
    torch.testing.assert_close(together, torch.einsum("bnhe,nhexyz->bxyz", grads, expected))


class TestVarlen:
    """FlashAttention for sequences of different lengths needs a GPU: another function stands in its place."""

    def rows(self, dtype: torch.dtype = torch.float16, size: int = 8) -> list[Tensor]:
        return [torch.randn(6, 2, size).to(dtype).requires_grad_() for _ in range(3)]

    def test_it_takes_halves_of_one_set_of_sequences(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(varlen, "_is_there", lambda device: True)
        offsets = offsets_of([2, 4])
        assert varlen.fits_varlen(*self.rows(), offsets, offsets, None)
        assert varlen.fits_varlen(*self.rows(torch.bfloat16, 256), offsets, offsets, None)
        assert not varlen.fits_varlen(*self.rows(torch.float32), offsets, offsets, None)
        assert not varlen.fits_varlen(*self.rows(size=4), offsets, offsets, None)
        assert not varlen.fits_varlen(*self.rows(size=264), offsets, offsets, None)
        assert not varlen.fits_varlen(*self.rows(), offsets, offsets.clone(), None)
        assert not varlen.fits_varlen(*self.rows(), offsets, offsets, torch.ones(4, 4))
        query, key, _ = self.rows()
        assert not varlen.fits_varlen(query, key, key[..., :4], offsets, offsets, None)
        with use_kernels("reference"):
            assert not varlen.fits_varlen(*self.rows(), offsets, offsets, None)

    @pytest.mark.parametrize("is_causal", [False, True])
    def test_what_it_is_given(self, monkeypatch: pytest.MonkeyPatch, is_causal: bool) -> None:
        module = types.ModuleType("torch.nn.attention.varlen")  # PyTorch 2.9 has none
        given: dict[str, Any] = {}

        def stand_in(query: Tensor, key: Tensor, value: Tensor, *frame: Any, **options: Any) -> Tensor:
            given.update(frame=frame, **options)
            return attended(query, key, value, offsets, offsets, 4, 4, None, is_causal, 0.5)

        monkeypatch.setattr(module, "varlen_attn", stand_in, raising=False)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        offsets = offsets_of([2, 4])
        rows = [x.detach().double().requires_grad_() for x in self.rows()]
        found = varlen.varlen_attention(attended, *rows, offsets, 4, is_causal, 0.5)
        short, key_short, *longest = given["frame"]
        assert short is key_short
        assert short.dtype == torch.int32
        assert short.tolist() == [0, 2, 6]
        assert longest == [4, 4]
        assert given["scale"] == 0.5
        assert given["window_size"] == ((-1, 0) if is_causal else (-1, -1))
        expected = by_loop(*rows, offsets, offsets, None, is_causal, 0.5)
        torch.testing.assert_close(found, expected)
        for results in zip(*(twice(x, rows) for x in (found, expected)), strict=True):
            torch.testing.assert_close(*results)


@pytest.mark.gpu
@pytest.mark.nondeterministic
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [[5, 9, 1, 130], [3, 0, 0, 6], [64]])
def test_flash_attention_on_a_gpu(dtype: torch.dtype, is_causal: bool, lengths: list[int]) -> None:
    offsets = offsets_of(lengths).cuda()
    rows = torch.randn(int(offsets[-1]), 3, 4, 16, dtype=dtype, device="cuda", requires_grad=True)
    query, key, value = rows.unbind(1)
    assert varlen.fits_varlen(query, key, value, offsets, offsets, None)
    found = ragged_scaled_dot_product_attention(
        query, key, value, offsets, offsets, max(lengths), max(lengths), is_causal=is_causal
    )
    exact = rows.detach().cpu().double().requires_grad_()
    whole = offsets.cpu()
    expected = by_loop(*exact.unbind(1), whole, whole, None, is_causal, None)
    close = {"rtol": 2e-2, "atol": 2e-2, "check_dtype": False}
    torch.testing.assert_close(found.cpu(), expected, **close)
    weight = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view(found.shape)
    (found * weight.to(found)).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(rows.grad.cpu(), exact.grad, **close)
