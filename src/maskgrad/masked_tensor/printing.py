"""Printing: ``--`` for unspecified entries, a table in notebooks."""

from __future__ import annotations

import html as markup
import math
from typing import Any

import numpy as np
import torch

from maskgrad.masked_tensor.tensor import MaskedTensor, stored_of

__all__ = ["html", "text"]

ABSENT = "--"
#: Rows and columns of a table before its middle is omitted.
MOST_ROWS, MOST_COLUMNS = 20, 12
#: Number of entries of the full shape up to which a sparse layout is printed densely.
SMALL = 1000


def _texts(values: torch.Tensor) -> list[str]:
    """Format the values of a 1-D tensor uniformly, with four decimals if any, as torch does."""
    if values.dtype == torch.bool or not (values.is_floating_point() or values.is_complex()):
        return [str(v) for v in values.tolist()]
    if values.is_complex():
        parts = zip(_texts(values.real), _texts(values.imag), strict=True)
        return [f"{re}{'' if im.startswith('-') else '+'}{im}j" for re, im in parts]
    wide = values.double()
    finite = wide[wide.isfinite() & (wide != 0)].abs()
    if not finite.numel() or bool((finite == finite.round()).all() & (finite.max() < 1e8)):
        return [f"{v:.0f}." if np.isfinite(v) else str(v) for v in wide.tolist()]
    if float(finite.max()) >= 1e8 or float(finite.min()) < 1e-4 or float(finite.max() / finite.min()) > 1e5:
        return [f"{v:.4e}" if np.isfinite(v) else str(v) for v in wide.tolist()]
    return [f"{v:.4f}" if np.isfinite(v) else str(v) for v in wide.tolist()]


def text(x: MaskedTensor) -> str:
    """Format as ``masked([1., --, 3.])``, summarised like NumPy's arrays when it is long."""
    values = x._values
    if stored_of(x) is not None:
        return _stored_text(x)
    mask = x._pattern.mask
    if type(values) is not torch.Tensor and not isinstance(values, torch.Tensor):
        return f"MaskedTensor(values={values!r}, mask={mask!r})"  # a placeholder during a transformation
    if values.is_meta or torch._C._functorch.maybe_get_level(values) > 0:
        return f"masked(..., shape={tuple(values.shape)}{_suffix(values)})"
    flat, known = values.detach().reshape(-1), mask.reshape(-1)
    places = np.arange(flat.numel()).reshape(tuple(values.shape))
    visible: list[int] = []
    prefix = "masked("
    layout: dict[str, Any] = {"separator": ", ", "prefix": prefix, "max_line_width": 100}

    def note(place: Any) -> str:
        visible.append(int(place))
        return "0"

    np.array2string(places, formatter={"int": note}, **layout)
    chosen = torch.tensor(sorted(set(visible)), dtype=torch.int64, device=flat.device)
    chosen = chosen[known[chosen]]
    written = dict(zip(chosen.tolist(), _texts(flat[chosen]), strict=True))
    width = max((len(t) for t in written.values()), default=0) if values.ndim else 0
    if values.ndim > 1 and len(written) < len(set(visible)):
        width = max(width, len(ABSENT))  # keeps columns of one-digit integers aligned
    body = np.array2string(
        places, formatter={"int": lambda p: written.get(int(p), ABSENT).rjust(width)}, **layout
    )
    return f"{prefix}{body}{_suffix(values)})"


def _stored_text(x: MaskedTensor) -> str:
    """Format as for a Boolean mask if the shape is small, else layout, shape and number of stored entries."""
    values = x._values
    if (
        not isinstance(values, torch.Tensor)
        or values.is_meta
        or torch._C._functorch.maybe_get_level(values) > 0
    ):
        return f"MaskedTensor(values={values!r}, layout={x.layout})"
    if math.prod(x.shape) <= SMALL:
        return f"{text(x.to_dense().detach())[:-1]}, layout={x.layout}{_suffix(values, False)})"
    count = f"{values.numel()} of {math.prod(x.shape)} entries"
    return f"masked({count}, shape={tuple(x.shape)}, layout={x.layout}{_suffix(values, False)})"


def _suffix(values: torch.Tensor, whole: bool = True) -> str:
    facts = ""
    if whole and values.numel() == 0 and values.ndim != 1:
        facts += f", size={tuple(values.shape)}"
    if whole and values.dtype not in (torch.get_default_dtype(), torch.int64, torch.bool, torch.complex64):
        facts += f", dtype={values.dtype}"
    if whole and values.device.type != "cpu":
        facts += f", device='{values.device}'"
    if values.grad_fn is not None:
        facts += f", grad_fn=<{type(values.grad_fn).__name__}>"
    elif values.requires_grad:
        facts += ", requires_grad=True"
    return facts


def html(x: MaskedTensor) -> str:
    """Format one or two dimensions as a table, unspecified entries greyed out; other ranks as text."""
    if stored_of(x) is not None:
        if math.prod(x.shape) > SMALL:
            return f"<pre>{markup.escape(text(x))}</pre>"
        x = x.to_dense()
    values = x._values
    if values.ndim not in (1, 2) or values.numel() == 0:
        return f"<pre>{markup.escape(text(x))}</pre>"
    rows, columns = (1, *values.shape) if values.ndim == 1 else values.shape
    keep_rows, keep_columns = _ends(rows, MOST_ROWS), _ends(columns, MOST_COLUMNS)
    matrix, mask = values.detach().reshape(rows, columns), x._pattern.mask.reshape(rows, columns)
    lines = []
    head = "".join(f"<th>{'…' if c is None else c}</th>" for c in keep_columns)
    lines.append(f"<tr><th></th>{head}</tr>")
    for r in keep_rows:
        if r is None:
            lines.append("<tr><td>⋮</td></tr>")
            continue
        cells = []
        for c in keep_columns:
            if c is None:
                cells.append("<td>…</td>")
            elif bool(mask[r, c]):
                cells.append(f"<td>{markup.escape(_texts(matrix[r, c].reshape(1))[0])}</td>")
            else:
                cells.append(f'<td style="color:#999">{ABSENT}</td>')
        lines.append(f"<tr><th>{r}</th>{''.join(cells)}</tr>")
    count = int(x.num_specified())
    share = f"{count} of {values.numel()} entries specified"
    caption = f"masked {markup.escape(str(tuple(values.shape)))}, {markup.escape(str(values.dtype))}, {share}"
    return f"<table><caption style='white-space: nowrap'>{caption}</caption>{''.join(lines)}</table>"


def _ends(size: int, most: int) -> list[int | None]:
    if size <= most:
        return list(range(size))
    half = most // 2
    return [*range(half), None, *range(size - half, size)]
