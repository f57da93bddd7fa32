"""The picture: what both ways learn, and how fast they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskgrad.plot.canvas import COLORS, DASHES, INK, TICK_SIZE, dress, figure

__all__ = ["draw"]

COLOR = dict(zip(("jagged", "padded"), COLORS, strict=False))


def draw(numbers: dict[str, Any], path: Path) -> None:
    """Write the picture; its title says what was found."""
    picture = figure(11, 4.6)
    learning, speed = picture.subplots(1, 2, width_ratios=(3, 2))
    ratio = numbers["shuffled"]["ratio"]
    finding = f"{ratio:.2f} times as fast" if ratio >= 1 else f"slower ({ratio:.2f} times as fast)"
    picture.suptitle(
        f"Jagged batches learn what padded ones learn, and are {finding}",
        x=0.01,
        ha="left",
        color=INK,
        fontsize=15,
    )
    for place, (name, losses) in enumerate(numbers["losses"].items()):
        learning.plot(
            range(1, len(losses) + 1), losses, DASHES[place], color=COLOR[name], linewidth=3 - 1.4 * place,
            label=f"{name}: {numbers[name]['words right']:.1%} of unseen words right",
        )  # fmt: skip
    learning.legend(frameon=False, fontsize=TICK_SIZE, labelcolor=INK)
    learning.set_ylim(bottom=0)
    dress(learning, "Training", "step", "cross entropy of the next sound")
    kinds = ("shuffled", "sorted")
    for place, name in enumerate(COLOR):
        drawn = speed.bar(
            [kind + (place - 0.5) * 0.38 for kind in range(len(kinds))],
            [numbers[kind][name] for kind in kinds],
            0.36, color=COLOR[name], label=name,
        )  # fmt: skip
        speed.bar_label(drawn, fmt="{:,.0f}", fontsize=TICK_SIZE - 1, color=INK)
    speed.set_xticks(range(len(kinds)), [f"{kind},\n{numbers[kind]['density']:.0%} tokens" for kind in kinds])
    speed.margins(y=0.25)
    speed.legend(frameon=False, fontsize=TICK_SIZE, labelcolor=INK, ncols=2, loc="upper left")
    threads = numbers["settings"]["threads"]
    dress(speed, "Tokens per second", f"batches ({threads} thread{'s' * (threads > 1)})", None)
    picture.savefig(path)
