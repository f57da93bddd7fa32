"""What every test starts from: a fixed seed, no compilation kept, NaN in uninitialised memory."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

from tests.effort import examples


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Hypothesis has no deadline, as a first call may compile for seconds; where CI is set, runs draw the same."""
    same: dict[str, Any] = {"derandomize": True, "database": None} if os.environ.get("CI") else {}
    if "PLANTED_FAULT" in os.environ:  # the first example that fails is enough: none is made smaller
        same |= {"phases": (hypothesis.Phase.explicit, hypothesis.Phase.generate)}
    hypothesis.settings.register_profile("maskgrad", deadline=None, max_examples=examples(100), **same)
    hypothesis.settings.load_profile("maskgrad")


# The doctor examines a model with a kernel of Triton (tests/unit/doctor/test_black_boxes.py): where there is no GPU, in
# Triton's interpreter. Triton reads the variable when it is imported, which PyTorch does before any test.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_finish() -> None:
    """Let the garbage collector, and a doctor that looks for modules, pass over millions of collected objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _left_by_other_files() -> None:
    """The same for what the tests of other files have imported and kept: a second for each examination at the end."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("PyTorch finds no CUDA device")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Same random numbers in every run, whichever tests ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (PyTorch's own test generators use the global state)
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # where there is no GPU, torch.manual_seed writes the stack down three times, for devices that never come
        torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _nan_in_uninitialized_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fill what `torch.empty` and its relatives return with NaN (the largest value for integers).

    A kernel that reads what nobody wrote then fails at once instead of once in a thousand runs. PyTorch fills
    only while deterministic algorithms are on; `warn_only` because some CUDA operations have none.
    """
    if request.node.get_closest_marker("nondeterministic"):
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _forget_compilations() -> Iterator[None]:
    """Drop what `torch.compile` kept, so that no test meets the recompilation limit of another."""
    yield
    if "torch._dynamo" not in sys.modules:
        return
    from torch._dynamo.utils import counters

    if counters:
        torch._dynamo.reset()
        counters.clear()
