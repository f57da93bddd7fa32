"""TorchScript's refusals: where they are attached, and where not. Words: tests/integration/test_tracing_refused."""

from __future__ import annotations

import pytest

import maskgrad as mg
from maskgrad.masked_tensor.torch_patches.torchscript import refuse_scripts, refuse_trace, trace_state


def test_functions_and_modules_are_marked_and_nothing_else() -> None:
    class Other:
        """No module."""

    refuse_scripts([Other, None, 3])
    assert not hasattr(Other, "__prepare_scriptable__")
    for public, words in (
        (mg.from_nan, "from_nan "),
        (mg.functional.mean, "mean "),
        (mg.nn.Embedding(2, 2), "Embedding "),
    ):
        with pytest.raises(mg.UnsupportedOperationError, match=f"maskgrad's {words}"):
            public.__prepare_scriptable__()
    assert trace_state() is None
    with pytest.raises(mg.UnsupportedOperationError, match=r"torch\.export\.export"):
        refuse_trace()
