"""Formulas as MathML, which browsers draw by themselves: no script, and nothing from a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def _inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.Element) -> None:
    formula = tex2mathml(" ".join(node.astext().split()), as_block=True)
    writer.body.append(
        f'<div class="math" style="overflow-x: auto; overflow-y: hidden; padding: 0.3em 0">{formula}</div>'
    )
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer; ``html_math_renderer`` chooses it."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
