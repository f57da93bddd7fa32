"""On which device the CUDA kernels are tried: in ordinary memory by Triton's interpreter, or on a GPU.

One process either interprets Triton or compiles it, so one of the two is skipped (see ``tests/conftest.py``;
``TRITON_INTERPRET=1`` interprets where there is a GPU, too). The cases are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import triton


@pytest.fixture(params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where the tensors of a test are; what a test makes without saying so lies there."""
    interpreted = triton.knobs.runtime.interpret
    if request.param == "gpu" and interpreted:
        pytest.skip("TRITON_INTERPRET is set: nothing is compiled for the GPU in this process")
    if request.param == "interpreter" and not interpreted:
        pytest.skip("TRITON_INTERPRET is not set: kernels are compiled for the GPU in this process")
    chosen = torch.device("cpu" if interpreted else "cuda")
    # The interpreter calculates with numpy, which warns of every NaN and inf, also of those that are thrown away.
    with torch.device(chosen), np.errstate(all="ignore"):
        yield chosen
