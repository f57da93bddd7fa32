"""Draws doctor.png: the inventory of a script's batch, with what was examined and what was found.

Run it from anywhere: ``python docs/pictures/doctor.py``. The script is examined by the command itself.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from maskgrad.cli.doctor import as_options
from maskgrad.cli.main import app
from maskgrad.plot.canvas import COLORS, INK, TICK_SIZE, figure

SCRIPT = Path(__file__).parent.parent / "programs" / "train.py"
HEAD = ("what the batch holds", "its role", "recognised by", "examined by")
LEFT = (0.01, 0.25, 0.38, 0.69)


def examined() -> dict[str, Any]:
    """The report of the command."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        CliRunner().invoke(app, ["doctor", "--json", str(report), str(SCRIPT)])
        plain: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return plain


def main() -> None:
    """Examine the script and write the picture next to this file."""
    report = examined()
    parts = report["inventory"]
    picture = figure(10.5, 0.75 + 0.4 * len(parts))
    ax = picture.subplots()
    ax.set_axis_off()
    ax.set_xlim(0, 1)
    ax.set_ylim(len(parts) - 0.5, -0.9)
    for left, words in zip(LEFT, HEAD, strict=True):
        ax.text(left, -0.55, words, fontsize=TICK_SIZE, color="#777777", va="center")
    for row, part in enumerate(parts):
        is_examined, asks = bool(part["examined"]), bool(part["option"])
        color = COLORS[0] if is_examined else COLORS[1] if asks else "#f2f2f2"
        ax.axhspan(row - 0.42, row + 0.42, color=color, alpha=0.16 if is_examined or asks else 1, linewidth=0)
        shape = "×".join(map(str, part["shape"]))
        last = ", ".join(part["examined"]) or (f"nothing: add {as_options(part['option'])}" if asks else "–")
        cells = (f"{part['name']}  {part['dtype']} {shape}", part["role"], part["recognised"] or "–", last)
        for left, words in zip(LEFT, cells, strict=True):
            ax.text(left, row, words, fontsize=TICK_SIZE, color=INK, va="center")
    finding = report["findings"][0]
    ax.set_title(
        f"{finding['kind']} at train.py:{finding['line']}: {finding['code']}",
        fontsize=TICK_SIZE + 3, color=INK, loc="left", fontweight="bold",
    )  # fmt: skip
    picture.savefig(Path(__file__).with_name("doctor.png"), dpi=150)


if __name__ == "__main__":
    main()
