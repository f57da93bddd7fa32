"""TensorBoard: numbers are plain; a tensor with holes says what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.rows import one_line, refused, works
from tests.ecosystem.truth import garbage


@works("tensorboard", "`add_scalar` of `x.mean()` and of losses")
@one_line("tensorboard", "`add_histogram`", "`writer.add_histogram('x', x.compressed())`")
def test_numbers_and_histograms(tmp_path: Path) -> None:
    x, values, mask = garbage(20, 3)
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("mean", x.mean(), 0)
        writer.add_histogram("x", x.compressed(), 0)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert read.Scalars("mean")[0].value == pytest.approx(values[mask].mean().item())
    found = read.Histograms("x")[0].histogram_value
    assert (found.num, found.min) == (mask.sum(), pytest.approx(values[mask].min().item()))


@refused(
    "tensorboard",
    "MaskedTensors in `add_scalar`, `add_histogram`, `add_image`",
    "`x.compressed()`, `x.filled(value)`",
)
def test_masked_tensors_refuse(tmp_path: Path) -> None:
    x, _, _ = garbage(4, 3)
    with SummaryWriter(str(tmp_path)) as writer:
        for call in (
            lambda: writer.add_scalar("a", x[0, 0]),
            lambda: writer.add_histogram("a", x),
            lambda: writer.add_image("a", x[None]),
            lambda: writer.add_scalars("a", {"b": x[0, 0]}),
            lambda: writer.add_embedding(x),
        ):
            with pytest.raises(UnsupportedOperationError, match=r"x\.compressed\(\), or x\.filled\(value\)"):
                call()
    assert torch.is_grad_enabled()
