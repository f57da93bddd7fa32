"""Where the tests compute, and in what: ``pytest --device cuda --dtype bfloat16 tests/laws tests/unit/kernels …``.

Both are PyTorch's own defaults, so that tests name neither; ``poisoned`` and ``leaf`` (``tests/poison.py``) and the
operator database (``tests/laws``) take the dtype, too. What a test says itself stays. Random numbers are drawn on the
CPU, so that they are the same everywhere. What holds on the CPU only, or in some dtypes, says so::

    @pytest.mark.on_cpu
    @pytest.mark.own_dtype("float16", "bfloat16")

and is run there, or in the dtype that it has without the option. Without dtypes it is so in all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._device import DeviceContext

__all__ = ["chosen_dtype"]

DTYPES = ("float64", "float32", "bfloat16", "float16")
RANDOM = (torch.rand, torch.randn, torch.randint, torch.randperm)

_chosen: torch.dtype | None = None


def chosen_dtype(otherwise: Any) -> Any:
    """The one that was asked for, or else this."""
    return _chosen or otherwise


class _Device(DeviceContext):
    """PyTorch's default device, but for random numbers."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in RANDOM and kwargs.get("device") is None:
            grad = kwargs.pop("requires_grad", False)
            return func(*args, **kwargs, device="cpu").to(self.device).requires_grad_(grad)
        return super().__torch_function__(func, types, args, kwargs)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", help="where tests that name no device compute: cuda, xla, …; default: the CPU"
    )
    parser.addoption(
        "--dtype", choices=DTYPES, help="what tests that name no dtype compute in; default: their own"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are imported, which make tensors then."""
    global _chosen
    config.addinivalue_line("markers", "on_cpu: --device changes nothing; see tests/defaults.py")
    config.addinivalue_line("markers", "own_dtype(*dtypes): --dtype changes nothing; see tests/defaults.py")
    if device := config.getoption("device"):
        torch.backends.cudnn.allow_tf32 = False
        _Device(device).__enter__()
    if dtype := config.getoption("dtype"):
        _chosen = getattr(torch, dtype)
        torch.set_default_dtype(_chosen)


@pytest.fixture(autouse=True)
def _own_device_and_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put back what the marked test does not want changed."""
    global _chosen
    dtype, mark = _chosen, request.node.get_closest_marker("own_dtype")
    own = dtype and mark and str(dtype).removeprefix("torch.") in (mark.args or DTYPES)
    device = request.node.get_closest_marker("on_cpu") and request.config.getoption("device")
    with torch.device("cpu") if device else contextlib.nullcontext():
        if own:
            _chosen = None
            torch.set_default_dtype(torch.float32)
        yield
        if own:
            _chosen = dtype
            torch.set_default_dtype(dtype)
