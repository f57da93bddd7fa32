"""What data that leaves PyTorch means for the result is judged by the step as a whole."""

from __future__ import annotations

import ctypes
import linecache
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

triton = pytest.importorskip("triton", reason="Triton has no wheel for this platform")
tl = pytest.importorskip("triton.language")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("without Triton's interpreter a kernel takes no tensors of the CPU", allow_module_level=True)

MASK = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
LAYER = nn.Linear(2, 1)


def _batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"x": torch.randn(3, 4, 2, generator=generator), "mask": MASK}


@triton.jit
def _row_sums(x_ptr, keep_ptr, out_ptr, size: tl.constexpr):
    row = tl.program_id(0)
    at = row * size + tl.arange(0, size)
    x = tl.where(tl.load(keep_ptr + at) != 0, tl.load(x_ptr + at), 0.0)
    tl.store(out_ptr + row, tl.sum(x))


class _Sums(torch.autograd.Function):
    """The sum of each row by a kernel, in the forward pass alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor) -> Tensor:
        ctx.keep, out = keep, torch.empty(len(x))
        _row_sums[(len(x),)](x.contiguous(), keep.to(torch.int8), out, size=4)  # kernel, box
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[:, None] * ctx.keep, None


class _Squared(torch.autograd.Function):
    """NumPy; the backward pass has what the forward pass kept as an array."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor) -> Tensor:
        ctx.array, ctx.keep = x.detach().numpy().copy(), keep.numpy()  # box
        return torch.from_numpy((ctx.array**2 * ctx.keep).sum(1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.from_numpy(2 * ctx.array * ctx.keep * gradient.numpy()[:, None]), None


def _step(function: Any, *, masked: bool) -> Callable[[dict[str, Tensor]], Tensor]:
    def step(b: dict[str, Tensor]) -> Tensor:
        keep = b["mask"] if masked else torch.ones_like(b["mask"])
        sums = function.apply(LAYER(b["x"]).squeeze(-1), keep)
        return (sums / b["mask"].sum(1)).square().mean()

    return step


def _ways_out() -> list[Any]:
    pointers = [Tensor.data_ptr, torch.UntypedStorage.data_ptr, torch.TypedStorage.data_ptr]
    return [Tensor.numpy, Tensor.tolist, *pointers, type(_row_sums).run]


@pytest.mark.parametrize("function", [_Sums, _Squared])
def test_a_leak_through_a_black_box_is_found_and_a_right_one_is_ok(function: Any) -> None:
    before = _ways_out()
    report = mg.doctor.examine(_step(function, masked=True), _batch(), quick=True)
    assert report.ok, str(report)
    report = mg.doctor.examine(_step(function, masked=False), _batch(), quick=True)
    assert report.kinds() == ["padding-leak"]
    assert linecache.getline(report.findings[0].file, report.findings[0].line).endswith("box\n"), str(report)
    assert re.search("the gradient of (weight|bias) and 1 more changes", report.findings[0].message)
    assert all(one is other for one, other in zip(before, _ways_out(), strict=True)), "nothing stays wrapped"


@pytest.mark.parametrize("masked", [False, True])
def test_a_script_whose_data_leave_is_not_ok(masked: bool) -> None:
    step, loader = (
        _step(_Squared, masked=masked),
        torch.utils.data.DataLoader([_batch()] * 2, batch_size=None),
    )
    with mg.doctor.watch({"x": "mask"}) as watched:
        for batch in loader:
            LAYER.zero_grad()
            step(batch).backward()
    assert watched.report.verdict == ("incomplete" if masked else "found"), str(watched.report)
    assert masked == any(
        "outside of PyTorch" in why and "examine" in why for why in watched.report.unexamined
    )


def _at(address: int, count: int) -> Tensor:
    return torch.tensor(list((ctypes.c_float * count).from_address(address)))


@pytest.mark.parametrize(
    "leave",
    [
        lambda h: torch.from_numpy(np.tanh(h.detach().numpy())),  # leaves
        lambda h: torch.as_tensor(np.asarray(h.detach()) * 2),  # leaves
        lambda h: torch.tensor(h.tolist()),  # leaves
        lambda h: _at(h.untyped_storage().data_ptr(), h.numel()),  # leaves
    ],
)
def test_data_that_leaves_in_the_step_is_judged_by_the_step_as_a_whole(
    leave: Callable[[Tensor], Tensor],
) -> None:
    def step(b: dict[str, Tensor]) -> Tensor:
        return LAYER(b["x"][b["mask"]]).mean() * leave(b["x"].mean((1, 2))).mean()

    report = mg.doctor.examine(step, _batch(), quick=True)
    (note,) = (note for note in report.notes if "outside of PyTorch" in note.message)
    assert linecache.getline(note.file, note.line).endswith("# leaves\n")
    (finding,) = report.findings
    assert (finding.file, finding.line) == (note.file, note.line)
    with pytest.raises(AssertionError, match="outside of PyTorch"):
        mg.testing.assert_garbage_invariant(step, _batch())
