"""When results count as the same."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["TOLERANCES", "agree"]

#: how far results of a dtype may lie apart: (relative, absolute). Millions of entries are added in different orders.
TOLERANCES = {
    "float64": (1e-7, 1e-8),
    "float32": (2e-3, 2e-4),
    "bfloat16": (5e-2, 5e-2),
    "float16": (2e-2, 2e-2),
}


def agree(found: Any, expected: Any, dtype: str = "float32", what: str = "") -> None:
    """Raise AssertionError unless tensors, or tuples of tensors, agree up to the rounding of ``dtype``.

    ``expected`` may have more precision than ``found``. ``what`` begins the message.
    """
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(
        found,
        expected,
        rtol=rtol,
        atol=atol,
        check_dtype=False,
        msg=lambda text: f"{what}: {text.strip()}" if what else text.strip(),
    )
