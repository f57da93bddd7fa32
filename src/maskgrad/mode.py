"""What may be done with tensors now, asked in one place.

Values are read, counted and cached in eager code only. Elsewhere a read would wait for a device, break a graph, or find
no values at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PLAIN", "TRACED", "can_read", "forward_mode_is_active", "is_plain", "mode"]

PLAIN = (Tensor, torch.nn.Parameter)
#: The modes in which a graph is traced.
TRACED = ("graph", "export")
_STRIDED = torch.strided
# Used in every operation: bound once, because four chains of attributes cost as much as the calls.
_is_traced = torch.compiler.is_compiling
_transforms_are_active = torch._C._are_functorch_transforms_active
_number_of_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state
_forward_ad = torch.autograd.forward_ad


def mode() -> str:
    """Return how the code runs.

    ===============  ====================================================================================
    ``"eager"``      one operation after the other, on tensors that have values
    ``"transform"``  under ``torch.func``, forward-mode derivatives, a dispatch mode (fake tensors, ``make_fx``) or
                     ``jit.trace``
    ``"graph"``      ``torch.compile`` is tracing: the graph may call operators of ``torch.library``
    ``"export"``     a graph of PyTorch's own operators is traced: for ``torch.export``, or for a transform of
                     ``torch.func`` inside ``torch.compile``, which has no rules for others
    ===============  ====================================================================================
    """
    if _is_traced():  # first, because the rest cannot be traced
        return "export" if torch.compiler.is_exporting() or _transforms_are_active() else "graph"
    if (
        _transforms_are_active()
        or _forward_ad._current_level >= 0
        or _number_of_dispatch_modes() > 0
        or _tracing_state() is not None
    ):
        return "transform"
    return "eager"


def forward_mode_is_active() -> bool:
    """Return whether forward-mode tangents may be present; False while a graph is being traced."""
    return not _is_traced() and _forward_ad._current_level >= 0


def can_read(*tensors: Tensor) -> bool:
    """Return whether values can be read without waiting: ordinary CPU tensors in eager code.

    Code that depends on a read must be a check of input or a shortcut, not the meaning of a result; the one exception
    is written down in docs/decisions/0004-nonfinite-factors-without-a-partner.md.
    """
    if mode() != "eager":
        return False
    for x in tensors:  # noqa: SIM110 (a generator costs as much as the checks)
        if not is_plain(x):
            return False
    return True


def is_plain(x: Tensor) -> bool:
    """Return whether ``x`` is an ordinary CPU tensor: no subclass, no other layout, no lazy view."""
    return type(x) in PLAIN and x.is_cpu and x.layout is _STRIDED and not (x.is_conj() or x.is_neg())
