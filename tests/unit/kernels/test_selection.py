"""Which body runs, and why; what an import brings."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from maskgrad import kernels
from maskgrad.kernels import explain, selection, use_kernels

LARGE = torch.randn(300, 300, dtype=torch.float32, device="cpu")
MASK = torch.rand(300, 300, device="cpu") < 0.5


@pytest.fixture(autouse=True)
def _unforced(monkeypatch):
    monkeypatch.delenv(selection.VARIABLE, raising=False)
    selection._environment.cache_clear()
    yield
    selection._environment.cache_clear()


def _set(monkeypatch, value):
    """The variable is read once in a process."""
    monkeypatch.setenv(selection.VARIABLE, value)
    selection._environment.cache_clear()


@pytest.mark.own_dtype("bfloat16", "float16")
def test_large_plain_tensors_run_compiled_and_each_reason_for_the_reference():
    x, m = LARGE, MASK
    assert explain("masked_sum", x, m) == ""
    for name, body in kernels.kernels_in_use().items():
        assert body == ("cpu" if kernels.KERNELS[name].has_loops else "reference"), name
    assert "too few" in explain("masked_sum", x[:2, :2], m[:2, :2])
    assert "torch.complex64" in explain("masked_sum", x + 0j, m)
    assert "not on the CPU" in explain("masked_sum", x.to("meta"), m.to("meta"))
    assert "not strided" in explain("masked_sum", x, m.to_sparse())
    assert "lazy view" in explain("masked_sum", torch.randn(300, 300, dtype=torch.complex64).conj().imag, m)
    assert "subclass" in explain("masked_sum", x.as_subclass(type("Sub", (torch.Tensor,), {})), m)
    with use_kernels("reference"):
        assert "forced by use_kernels" in explain("masked_sum", x, m)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script:DeprecationWarning"
)  # PyTorch's own decompositions for jvp
def test_transforms_and_modes_run_the_reference():
    seen = []

    def f(x):
        seen.append(explain("masked_sum", x, MASK))
        return kernels.masked_sum(x, MASK, (1,), False)[0]

    torch.vmap(f)(LARGE[None])
    torch.func.grad(lambda x: f(x).sum())(LARGE)
    _, tangent = torch.func.jvp(f, (LARGE,), (LARGE,))
    torch.testing.assert_close(tangent, torch.where(MASK, LARGE, 0).sum(1))
    torch.fx.experimental.proxy_tensor.make_fx(f)(LARGE)
    assert len(seen) == 4
    assert all(reason != "" for reason in seen)


def test_the_environment_variable_forces_one_body(monkeypatch):
    _set(monkeypatch, "reference")
    assert set(kernels.kernels_in_use().values()) == {"reference"}
    _set(monkeypatch, "cpu")
    assert explain("masked_sum", LARGE[:1, :1], MASK[:1, :1]) == ""
    with use_kernels("reference"):
        assert explain("masked_sum", LARGE, MASK) != ""
    _set(monkeypatch, "numba")
    with pytest.raises(
        ValueError,
        match=r"MASKGRAD_KERNELS must be one of reference, cpu, compiled, invariant, or unset; got 'numba'",
    ):
        kernels.masked_sum(LARGE, MASK, (0,), False)


def test_an_unknown_body_and_a_missing_device_are_named(monkeypatch):
    words = r"use_kernels.. expects one of reference, cpu, compiled, invariant; got 'gpu'"
    with pytest.raises(ValueError, match=words), use_kernels("gpu"):
        pass
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"device is 'cuda', but PyTorch finds no CUDA device"):
        kernels.kernels_in_use("cuda")


@pytest.mark.gpu
def test_large_plain_tensors_on_a_gpu_run_compiled():
    x = torch.randn(1100, 1000, device="cuda")
    m = x > 0
    assert explain("masked_sum", x, m) == ""
    assert "the device of the values" in explain("masked_sum", x, m.cpu())
    assert "too few" in explain("masked_sum", x[:2, :2], m[:2, :2])
    with use_kernels("cpu"):
        assert "not on the CPU" in explain("masked_sum", x, m)
    with use_kernels("compiled"):
        assert explain("masked_sum", x[:2, :2], m[:2, :2]) == ""
    assert kernels.kernels_in_use("cuda") == {
        name: "compiled" if kernel.fuses else "reference" for name, kernel in kernels.KERNELS.items()
    }


LAZY = """
import sys, torch, maskgrad.kernels as k
assert 'numba' not in sys.modules
k.masked_sum(torch.ones(4, 4), torch.ones(4, 4, dtype=torch.bool), (0,), False)
assert 'numba' not in sys.modules, 'small tensors'
k.masked_sum(torch.ones(400, 400), torch.ones(400, 400, dtype=torch.bool), (0,), False)
assert 'numba' in sys.modules, 'large tensors'
"""
ABSENT = """
import sys, warnings; sys.modules['numba'] = None
import torch, maskgrad.kernels as k
x, m = torch.ones(400, 400), torch.ones(400, 400, dtype=torch.bool)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter('always')
    for _ in range(3): assert k.masked_sum(x, m, (0, 1), False)[0] == 160000
assert len(seen) == 1 and 'numba cannot be used' in str(seen[0].message), seen
"""
INTERRUPTED = """
import os, signal, sys, threading, time
import torch, maskgrad as mg
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs that a shell runs in the background
x = mg.masked(torch.ones(1000, 1000), torch.ones(1000, 1000, dtype=torch.bool))
stopped = threading.Event()
def press():  # again after a while: Python drops what arrives inside a destructor or a callback of weakref
    wait = float(sys.argv[1])
    while not stopped.wait(wait):
        os.kill(os.getpid(), signal.SIGINT)
        wait = 10.0
threading.Thread(target=press, daemon=True).start()
try:
    for _ in range(10**6):
        x.sum(1)
    sys.exit("never interrupted")
except KeyboardInterrupt:
    stopped.set()
    assert x.sum(1).tolist() == [1000.0] * 1000
    assert mg.kernels_in_use()["masked_sum"] == "cpu"
"""


@pytest.mark.processes(keep=2)
@pytest.mark.parametrize(
    ("code", "argument"),
    [(LAZY, ""), (ABSENT, ""), (INTERRUPTED, "0.3"), (INTERRUPTED, "0.01"), (INTERRUPTED, "1.0")],
    ids=["numba is imported when first used", "numba may be absent", *["an interrupted first use"] * 3],
)
def test_in_a_fresh_interpreter(code: str, argument: str) -> None:
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", code, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
