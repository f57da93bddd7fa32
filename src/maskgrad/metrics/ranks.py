"""The ranks over which a metric is computed."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["group_of"]


def group_of(group: Any, what: str) -> Any:
    """The ranks of ``group``, or of the default group; None if there is one process."""
    if group is None and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from maskgrad.distributed.process_group import (
        ProcessGroup,
    )  # takes a second, avoided for one process

    ranks = ProcessGroup(group, what)
    return ranks if ranks.size > 1 else None
