"""Printing: ``--`` for unspecified entries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from maskgrad.masked_tensor.tensor import MaskedTensor, stored_of

__all__ = ["text"]

ABSENT = "--"
#: Number of entries of the full shape up to which a sparse layout is printed densely.
SMALL = 1000


def _texts(values: torch.Tensor) -> list[str]:
    """Format the values of a 1-D tensor uniformly, with four decimals if any, as torch does."""
    if values.is_complex():
        parts = zip(_texts(values.real), _texts(values.imag), strict=True)
        return [f"{re}{'' if im.startswith('-') else '+'}{im}j" for re, im in parts]
    if not values.is_floating_point():
        return [str(v) for v in values.tolist()]
    wide = values.double()
    finite = wide[wide.isfinite() & (wide != 0)].abs()
    least, most = (float(finite.min()), float(finite.max())) if finite.numel() else (1.0, 1.0)
    style = ".0f" if most < 1e8 and bool((finite == finite.round()).all()) else ".4f"
    style = ".4e" if style == ".4f" and (most >= 1e8 or least < 1e-4 or most / least > 1e5) else style
    end = "." if style == ".0f" else ""
    return [f"{v:{style}}{end}" if np.isfinite(v) else str(v) for v in wide.tolist()]


def text(x: MaskedTensor) -> str:
    """Format as ``masked([1., --, 3.])``, summarised like NumPy's arrays when it is long."""
    values = x._values
    if not isinstance(values, torch.Tensor):
        return f"MaskedTensor(values={values!r}, layout={x.layout})"  # a placeholder during a transformation
    if values.is_meta or torch._C._functorch.maybe_get_level(values) > 0:
        return f"masked(..., shape={tuple(x.shape)}{_suffix(values)})"
    if stored_of(x) is not None:
        end = f", layout={x.layout}{_suffix(values, False)})"
        if math.prod(x.shape) <= SMALL:
            return text(x.to_dense().detach())[:-1] + end
        return f"masked({values.numel()} of {math.prod(x.shape)} entries, shape={tuple(x.shape)}{end}"
    flat, known = values.detach().reshape(-1), x._pattern.mask.reshape(-1)
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
