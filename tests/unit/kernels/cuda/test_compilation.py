"""Every kernel compiles for a GPU, on a machine that has none: the interpreter accepts more than the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from maskgrad.kernels import KERNELS

ROOT = Path(__file__).parents[4]

# In a process of its own, because one either interprets Triton or compiles it. Kernels are compiled, not started, so
# what the bodies return is memory that nobody wrote.
COMPILE = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


class NoDriver:
    def get_current_target(self):
        return GPUTarget("cuda", int(sys.argv[1]), 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


driver.set_active(NoDriver())
run, seen = JITFunction.run, set()


def compile_only(self, *args, grid, warmup, **kwargs):
    assert "ptx" in run(self, *args, grid=grid, warmup=True, **kwargs).asm
    for of in (self, *kwargs.values()):
        if isinstance(of, JITFunction):
            seen.add(f"{of.fn.__module__}.{of.fn.__qualname__}".removeprefix("maskgrad.kernels."))


JITFunction.run = compile_only

from tests.unit.kernels.bodies import cuda
from tests.unit.kernels.test_registry import samples

for name, args, kwargs in samples():
    body = getattr(cuda, name, None)
    if body is not None:
        body(*args, **kwargs)
mask = torch.rand(40, 24) < 0.5
for dtype in (torch.float16, torch.float64, torch.int32, torch.bool):
    values = torch.zeros(40, 24, dtype=dtype)
    cuda.masked_sum(values, mask, (0,), False)
    cuda.masked_sum(values.t(), mask.t(), (1,), True, torch.float64 if dtype.is_floating_point else None)
    cuda.masked_filling(values, mask, True)
cuda.masked_sum(torch.zeros(30_000), torch.zeros(30_000, dtype=torch.bool), (0,), False)
values, labels = torch.zeros(40, 24, dtype=torch.float64), torch.zeros(40, dtype=torch.int64)
cuda.masked_layer_norm(values, mask, 1, values[0], values[0], 1e-5, True)
cuda.masked_cross_entropy(values, mask, labels, 0.1)
cuda.masked_loss_sum(values.t(), values.t(), mask.t(), "logits", ())
pointers, floats = torch.tensor([0, 10, 40]), torch.zeros(40, 24, dtype=torch.float16)
for ord in (0.0, 1.0, 2.0, 3.0, float("inf"), -float("inf")):
    norm = cuda.segment_norm(floats, pointers, None, ord)
    cuda.segment_norm_backward(norm, floats, norm, pointers, None, ord)
    if ord in (0.0, 1.0, 2.0, float("inf")):
        norm, _ = cuda.masked_norm(floats, mask, (0,), True, ord)
        cuda.masked_norm_backward(norm, floats, mask, norm, ord)
for largest in (False, True):
    cuda.masked_extremum(torch.zeros(40, 24, dtype=torch.int32), mask, (0,), True, largest)
    cuda.masked_position(floats, mask, 0, True, largest)
    cuda.segment_softmax(floats, pointers, None, largest)
    cuda.segment_softmax_backward(floats, floats, pointers, None, largest)
print(sorted(seen))
"""


@pytest.mark.interpreter(per="elsewhere")  # the interpreter runs each of them
def test_every_kernel_compiles(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, "80"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for kernel in (
        "reductions.cuda._sums",
        "filling.cuda._select",
        "softmax.cuda._step",
        "softmax.cuda._share",
        "updates.cuda._rowwise_adagrad",
        "cuda.loops._each",
        "cuda.loops._over_table",
        "cuda.loops._over_segments",
        "cuda.lines._line",
        "cuda.lines._blend",
        "cuda.lines._step",
        "segments.cuda._step",
        "segments.cuda._first",
        "segments.cuda.softmax_of",
        "segments.cuda.softmax_slope",
        "updates.cuda._sgd",
        "updates.cuda._adagrad",
        "updates.cuda._adam",
        "updates.cuda._rmsprop",
        "variance.cuda._step",
        "variance.cuda._deviation",
        "norms.cuda._step",
        "norms.cuda._slope",
        "prod.cuda._step",
        "prod.cuda._others",
        "extrema.cuda._step",
        "extrema.cuda._step_position",
        "extrema.cuda._spread",
        "normalization.cuda._standardized",
        "normalization.cuda._backward",
        "losses.cuda._loss",
        "losses.cuda._step",
        "losses.cuda._gradient",
        "cross_entropy.cuda._step",
        "cross_entropy.cuda._gradient",
    ):
        assert f"'{kernel}'" in done.stdout


def test_a_family_with_a_body_for_cuda_has_one_for_each_of_its_kernels():
    assert {"masked_sum", "masked_filling", "merge_rows", "segment_sum", "adam_rows_"} <= {
        name for name, kernel in KERNELS.items() if "cuda" in kernel.backends
    }
    for name, kernel in KERNELS.items():
        if "cuda" in kernel.backends:
            assert callable(kernel.backend("cuda"))
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"maskgrad::{name}", "CUDA")
