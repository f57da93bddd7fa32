"""Suites need packages that are not everywhere, and hold no tests of their own."""

from __future__ import annotations

import pytest
import torch

collect_ignore_glob = ["suites/*"]


@pytest.fixture(autouse=True)
def _opacus_may_set_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.testing._internal, once another test has imported it, forbids flags that opacus sets."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
