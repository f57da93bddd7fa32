"""The report as one HTML page: findings, the program's lines and how far padding travelled along them."""

from __future__ import annotations

import linecache
from html import escape

from maskgrad.doctor.report import Report

__all__ = ["page"]

_STYLE = """
body { color: #222; font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
pre { background: #f6f6f6; padding: .5em; overflow-x: auto; }
.finding { border-left: 4px solid #c33; padding-left: 1em; }
table.code { border-collapse: collapse; font: 13px/1.4 monospace; width: 100%; }
table.code td { padding: 0 .6em; white-space: pre; }
td.number { color: #888; text-align: right; } tr.padding { background: #fff3cd; } tr.real { background: #f8d7da; }
tr.mixed { background: #c33; color: #fff; } .key span { padding: 0 .6em; margin-right: .6em; }
"""
_MEANING = {
    "padding": "padding differs here",
    "mixed": "padding is mixed into what is real",
    "real": "real entries differ",
}


def page(report: Report) -> str:
    """One file that needs no other: HTML and style."""
    parts = [f"<h1>{len(report.findings)} finding{'' if len(report.findings) == 1 else 's'}</h1>"]
    for finding in report.findings:
        where = f"{escape(finding.file)}:{finding.line}" if finding.file else "no line is known"
        parts.append(
            f'<div class="finding"><h2>{escape(finding.kind)}</h2><p>{where}'
            f"{f' in <code>{escape(finding.module)}</code>' if finding.module else ''}</p>"
            f"<pre>{escape(finding.code)}</pre><p>{escape(finding.message)}</p>"
            f"<p>Instead:</p><pre>{escape(finding.remedy)}</pre></div>"
        )
    if report.notes:
        parts.append(
            "<h2>Notes</h2><ul>" + "".join(f"<li>{escape(str(note))}</li>" for note in report.notes) + "</ul>"
        )
    parts += [_listing(file, lines) for file, lines in report.trail.items()]
    if report.experiments:
        rows = "".join(
            f"<tr><td>{escape(tried.name)}</td><td>{escape(tried.changed)}</td><td>{escape(tried.result)}</td></tr>"
            for tried in report.experiments
        )
        parts.append(
            f"<h2>Experiments</h2><table><tr><th>name</th><th>changed</th><th>result</th></tr>{rows}</table>"
        )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>maskgrad doctor</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _listing(file: str, lines: dict[int, str]) -> str:
    """The lines of one file around those at which something differed."""
    shown = sorted({near for line in lines for near in range(line - 2, line + 3) if near > 0})
    rows, before = [], 0
    for number in shown:
        text = linecache.getline(file, number)
        if not text:
            continue
        if before and number > before + 1:
            rows.append('<tr><td class="number">⋮</td><td></td></tr>')
        kind = lines.get(number, "")
        rows.append(
            f'<tr class="{kind}"><td class="number">{number}</td><td>{escape(text.rstrip())}</td></tr>'
        )
        before = number
    key = "".join(
        f'<tr class="{kind}"><td></td><td>{meaning}</td></tr>' for kind, meaning in _MEANING.items()
    )
    return f'<h2>{escape(file)}</h2><table class="code">{"".join(rows)}</table><table class="code key">{key}</table>'
