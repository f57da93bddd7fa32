"""The tour is a notebook: run its cells, keep what they print, and show it as a page.

``python docs/notebook.py`` runs it and writes what its cells print into it; a test compares the two.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

TOUR = Path(__file__).parent / "tour.ipynb"
REPOSITORY = "https://github.com/maskgrad/maskgrad/blob/main/docs"

Cell = dict[str, Any]


def read(path: Path = TOUR) -> list[Cell]:
    """The cells of a notebook."""
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def source_of(cell: Cell) -> str:
    """What somebody typed into a cell."""
    return "".join(cell["source"])


def run(cells: list[Cell]) -> list[list[dict[str, Any]]]:
    """Execute the code of a notebook from top to bottom, as Jupyter does; what each cell prints, in its format."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run(source_of(cell), names) for cell in cells if cell["cell_type"] == "code"]


def _run(code: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    statements = ast.parse(code).body
    last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), "<cell>", "exec"), names)  # noqa: S102  (our own notebook)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None and not code.rstrip().endswith(";"):
        shown = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = _lines(value._repr_html_())
        outputs.append(
            {"output_type": "execute_result", "data": shown, "metadata": {}, "execution_count": None}
        )
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def page(cells: list[Cell]) -> str:
    """The notebook in Markdown: its text, its code, and what it printed when it was last run."""
    parts = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "markdown":
            parts.append(source_of(cell).replace(f"{REPOSITORY}/", "../"))
            if number == 0:
                parts.append(f"This page is a notebook: [download it]({REPOSITORY}/{TOUR.name}) and run it.")
            continue
        parts.append(f"```python\n{source_of(cell)}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(f"```{{raw}} html\n{''.join(data['text/html'])}\n```")
            else:
                parts.append(f"```text\n{''.join(data.get('text/plain', output.get('text'))).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the tour and write what its cells print into it."""
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(code, run(notebook["cells"]), strict=True), 1):
        for output in outputs:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
        cell.update(execution_count=number, outputs=outputs)
    TOUR.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
