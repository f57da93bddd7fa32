"""TensorBoard: numbers are plain; a tensor with holes says what to write instead."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from tests.ecosystem.truth import assert_refused, garbage


def test_masked_tensors_refuse(tmp_path: Path) -> None:
    x, _, _ = garbage(20, 3)
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("mean", x.mean(), 0)
        writer.add_histogram("x", x.compressed(), 0)
        assert_refused(
            r"x\.compressed\(\), or x\.filled\(value\)",
            lambda: writer.add_scalar("a", x[0, 0]),
            lambda: writer.add_histogram("a", x),
            lambda: writer.add_image("a", x[None]),
            lambda: writer.add_scalars("a", {"b": x[0, 0]}),
            lambda: writer.add_embedding(x),
        )
