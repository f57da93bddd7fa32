"""What the packages need so that their tests can be strict."""

from __future__ import annotations

import os

# No test needs a network, and none may wait for one.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

import maskgrad as mg


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Each file has imported its packages."""
    mg.integrations.install()
