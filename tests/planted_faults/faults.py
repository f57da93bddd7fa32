"""All faults: those that somebody thought of, and those that a tool has drawn (``draw.py``)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.planted_faults import doors, gradients, kernels, masked_tensor, optim, processes, semantics
from tests.planted_faults.draw import DRAWN
from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]


def _drawn() -> Iterator[Fault]:
    for fault in json.loads(DRAWN.read_text(encoding="utf-8")):
        name = f"{fault['operator']} {fault['occurrence']} in {fault['file']}"
        yield Fault(
            name, fault["file"], fault["old"], fault["new"], equivalent=fault["equivalent"], drawn=True
        )


FAULTS: tuple[Fault, ...] = (
    *kernels.FAULTS,
    *semantics.FAULTS,
    *masked_tensor.FAULTS,
    *gradients.FAULTS,
    *optim.FAULTS,
    *processes.FAULTS,
    *doors.FAULTS,
    *_drawn(),
)
