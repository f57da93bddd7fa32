"""Words of unequal length through one LSTM: jagged, padded and packed, in turns on the same batches."""

from __future__ import annotations

from examples.movielens.bars import bars
from examples.phonemes.packed import tokens_per_second
from examples.phonemes.words import load

from .part import Column, Part

__all__ = ["measure"]


def measure(seed: int = 0, steps: int = 30, words: int | None = 20_000) -> Part:
    """Tokens per second; the gradients are compared on each batch, and a difference ends the program."""
    samples = load(seed, held_out=0, words=words).training
    speeds = tokens_per_second(samples, steps, seed=seed)
    best = max(speeds, key=lambda name: speeds[name])
    ours = speeds["jagged"]
    finding = (
        f"Words of unequal length: jagged reaches {ours / speeds['padded']:.2f} times the tokens per second of padded "
        f"and {ours / speeds['packed']:.2f} times those of packed; {best} is fastest"
    )
    rows = {name: {"tokens per second": speed} for name, speed in speeds.items()}
    return Part(
        "lengths",
        finding,
        {"tokens per second": Column("{:,.0f}", max, compared=True)},
        rows,
        lambda ax: bars(rows, ax, number_format="{:,.0f}", xlabel="tokens per second"),
        ["All three compute the same gradients on each batch (checked)."],
    )
