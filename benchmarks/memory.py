"""How much memory a call takes at its peak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak"]


def peak(call: Callable[[], Any]) -> int:
    """The largest number of bytes that ``call`` holds at a time, beyond what was there before.

    PyTorch's profiler is told of whatever its allocator for the CPU gives and takes back.
    """
    call()  # what is kept from call to call is there already
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = largest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        largest = max(largest, held)
    return largest
