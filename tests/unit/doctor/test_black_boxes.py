"""What data that leaves PyTorch means for the result is judged by the step as a whole."""

from __future__ import annotations

import ctypes
import linecache
import os
import re
from collections.abc import Callable
from typing import Any

import numba
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


@triton.jit  # type: ignore[untyped-decorator]
def _row_sums(x_ptr, keep_ptr, out_ptr, size: tl.constexpr, masked: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = row * size + tl.arange(0, size)
    x = tl.load(x_ptr + at)
    if masked:
        x = tl.where(tl.load(keep_ptr + at) != 0, x, 0.0)
    tl.store(out_ptr + row, tl.sum(x))


def _launched(x: Tensor, mask: Tensor, *, masked: bool) -> Tensor:
    out = torch.empty(len(x))
    _row_sums[(len(x),)](x, mask.to(torch.int8), out, size=4, masked=masked)  # kernel, box
    return out


class _Sums(torch.autograd.Function):
    """The sum of each row by a kernel, in the forward pass alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, masked: bool) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.masked = masked
        return _launched(x.contiguous(), mask, masked=masked)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        wide = gradient[:, None].expand(mask.shape)
        return (wide.masked_fill(~mask, 0.0) if ctx.masked else wide), None, None


@numba.njit  # type: ignore[untyped-decorator]
def _squares(x, keep):  # type: ignore[no-untyped-def]
    out = np.zeros(len(x), x.dtype)
    for row in range(len(x)):
        for time in range(x.shape[1]):
            if keep[row, time]:
                out[row] += x[row, time] ** 2
    return out


class _Squared(torch.autograd.Function):
    """Numba and NumPy; the backward pass has what the forward pass kept as an array."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, masked: bool) -> Tensor:
        keep = mask.numpy() if masked else np.ones(mask.shape, bool)
        ctx.array, ctx.keep = x.detach().numpy().copy(), keep  # box
        return torch.from_numpy(_squares(ctx.array, keep))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.from_numpy(2 * ctx.array * ctx.keep * gradient.numpy()[:, None]), None, None


class _ByPointer(torch.autograd.Function):
    """With ``setup_context``, and the data read through its address."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor, masked: bool) -> Tensor:
        import ctypes

        kept = (x * mask if masked else x * 1).contiguous()
        numbers = (ctypes.c_float * kept.numel()).from_address(kept.data_ptr())  # box
        return torch.tensor(list(numbers)).reshape(x.shape).sum(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mask, ctx.masked = inputs[1], inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        wide = gradient[:, None].expand(ctx.mask.shape)
        return (wide * ctx.mask if ctx.masked else wide), None, None


class _Scaled(torch.autograd.Function):
    """The backward pass calls PyTorch alone, with a number that NumPy gave in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, masked: bool) -> Tensor:
        ctx.keep = mask if masked else torch.ones_like(mask)
        ctx.scale = float(np.abs(x.detach().numpy() * ctx.keep.numpy()).sum())  # box
        return (x * ctx.keep).sum(1)  # without the mask, this sum leaks like the number of the box

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[:, None] * ctx.keep * ctx.scale, None, None


NAMES = ["triton", "numba", "pointer", "number"]
FUNCTIONS: list[Callable[..., Tensor]] = [_Sums.apply, _Squared.apply, _ByPointer.apply, _Scaled.apply]  # type: ignore[list-item]


def _step(function: Callable[..., Tensor], *, masked: bool) -> Callable[[dict[str, Tensor]], Tensor]:
    def step(b: dict[str, Tensor]) -> Tensor:
        h = LAYER(b["x"]).squeeze(-1)
        sums = function(h, b["mask"], masked)
        return (sums / b["mask"].sum(1)).square().mean()

    return step


@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
def test_a_leak_through_a_black_box_is_found_and_a_right_one_is_ok(function: Callable[..., Tensor]) -> None:
    report = mg.doctor.examine(_step(function, masked=True), _batch(), quick=True)
    assert report.ok, str(report)
    report = mg.doctor.examine(_step(function, masked=False), _batch(), quick=True)
    assert report.kinds() == ["padding-leak"]
    assert linecache.getline(report.findings[0].file, report.findings[0].line).endswith("box\n"), str(report)
    assert re.search("the gradient of (weight|bias) and 1 more changes", report.findings[0].message)


@pytest.mark.parametrize("masked", [False, True])
def test_a_script_whose_data_leave_is_not_ok(masked: bool) -> None:
    batch, step = _batch(), _step(_Squared.apply, masked=masked)  # type: ignore[arg-type]
    with mg.doctor.watch({"x": "mask"}) as watched:
        for _ in range(2):
            LAYER.zero_grad()
            loader = torch.utils.data.DataLoader([batch], batch_size=None)
            step(next(iter(loader))).backward()  # type: ignore[no-untyped-call]
    assert watched.report.verdict == ("incomplete" if masked else "found"), str(watched.report)
    assert masked == any(
        "outside of PyTorch" in why and "examine" in why for why in watched.report.unexamined
    )


def test_writes_of_a_kernel_are_undone() -> None:
    total = torch.zeros(3)

    def step(b: dict[str, Tensor]) -> Tensor:
        _row_sums[(3,)](b["x"][..., 0].contiguous(), b["mask"].to(torch.int8), total, size=4, masked=True)
        b["x"].numpy()[0, 0, 0] += 1
        return LAYER(b["x"])[b["mask"]].mean()  # type: ignore[no-any-return]

    batch = _batch()
    mg.doctor.examine(step, batch, quick=True)
    assert torch.equal(total, torch.zeros(3))
    torch.testing.assert_close(batch["x"], _batch()["x"], rtol=0, atol=0)


def _at(address: int, count: int) -> Tensor:
    return torch.tensor(list((ctypes.c_float * count).from_address(address)))


@pytest.mark.parametrize(
    "leave",
    [
        lambda h: torch.from_numpy(np.tanh(h.detach().numpy())),  # leaves
        lambda h: torch.as_tensor(np.asarray(h.detach()) * 2),  # leaves
        lambda h: torch.tensor(h.tolist()),  # leaves
        lambda h: _at(h.untyped_storage().data_ptr(), h.numel()),  # leaves
        lambda h: _at(h.storage().data_ptr(), h.numel()),  # leaves
    ],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_data_that_leaves_in_the_step_is_judged_by_the_step_as_a_whole(
    leave: Callable[[Tensor], Tensor],
) -> None:
    def step(b: dict[str, Tensor]) -> Tensor:
        return LAYER(b["x"][b["mask"]]).mean() * leave(b["x"].mean((1, 2))).mean()  # type: ignore[no-any-return]

    report = mg.doctor.examine(step, _batch(), quick=True)
    (note,) = (note for note in report.notes if "outside of PyTorch" in note.message)
    assert linecache.getline(note.file, note.line).endswith("# leaves\n")
    (finding,) = report.findings
    assert (finding.file, finding.line) == (note.file, note.line)
    with pytest.raises(AssertionError, match="outside of PyTorch"):
        mg.testing.assert_garbage_invariant(step, _batch())


def test_nothing_stays_wrapped() -> None:
    def ways() -> list[Any]:
        pointers = [Tensor.data_ptr, torch.UntypedStorage.data_ptr, torch.TypedStorage.data_ptr]
        return [Tensor.numpy, Tensor.tolist, *pointers, type(_row_sums).run]

    before = ways()
    mg.doctor.examine(_step(_Sums.apply, masked=True), _batch())
    assert all(one is other for one, other in zip(before, ways(), strict=True))
    assert "data_ptr" not in vars(torch.UntypedStorage)
    assert not {"numpy", "data_ptr", "tolist"} & vars(Tensor).keys()
