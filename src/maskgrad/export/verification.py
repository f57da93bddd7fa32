"""Does a file give what the model gives? Asked before anybody can find the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import ExportMismatchError
from maskgrad.export.capture import Plain
from maskgrad.export.onnx_runtime import first_line
from maskgrad.export.ports import Ports
from maskgrad.export.variations import variations

__all__ = ["Tolerance", "compared_with"]

#: rtol and atol; what is None follows the dtype.
Tolerance = tuple[float | None, float | None]

TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (5e-2, 5e-2),
}


def compared_with(
    plain: Plain,
    run: Callable[[Sequence[Tensor]], list[Tensor]],
    tensors: Sequence[Tensor],
    varying: Sequence[Mapping[int, int]],
    tolerance: Tolerance,
) -> tuple[str, ...]:
    """Compare results on the given inputs and on variations of them; returns which, in words.

    A variation that the model itself refuses (another number of rows, where an argument stays as it is) is left out.

    Raises:
        ExportMismatchError: they differ, or the file cannot be run on what the model accepts.
    """
    agreed: list[str] = []
    for words, inputs in variations(plain.ports, tensors, varying):
        try:
            with torch.no_grad():
                expected = plain([t.clone() for t in inputs])  # a model may write into its arguments
        except Exception:
            if not agreed:
                raise
            continue
        assert plain.results is not None
        _compare(run, plain, inputs, expected, words, tolerance)
        agreed.append(words)
    return tuple(agreed)


def _compare(
    run: Any,
    plain: Plain,
    inputs: Sequence[Tensor],
    expected: Sequence[Tensor],
    words: str,
    tolerance: Tolerance,
) -> None:
    assert plain.results is not None
    ports = plain.results
    try:
        found = run(inputs)
    except Exception as error:
        raise ExportMismatchError(
            f"the file cannot be run {words}, where the model can: {first_line(error)}"
        ) from error
    difference = _difference(ports, found, [t.detach().cpu() for t in expected], tolerance)
    if difference is None:
        return
    with torch.no_grad():
        again = plain([t.clone() for t in inputs])
    if _difference(ports, [t.detach().cpu() for t in again], [t.detach().cpu() for t in expected], tolerance):
        raise ExportMismatchError(
            "the model gives other results each time it is called, so that no file can be compared with it; take out "
            "what draws random numbers, or pass verify=False"
        )
    raise ExportMismatchError(
        f"the file disagrees with the model {words}: {difference}. Nothing was written; pass rtol and atol if that is "
        "rounding, change the model, or pass verify=False for the file as it is"
    )


def _difference(
    ports: Ports, found: list[Tensor], expected: list[Tensor], tolerance: Tolerance
) -> str | None:
    """What differs first, in words; masks before values, values where they are specified."""
    names = ["/".join(place.path) or "output" for place in ports.places if place.roles]
    groups = [
        (place, f, e)
        for place, f, e in zip(ports.places, ports.groups(found), ports.groups(expected), strict=True)
        if place.roles
    ]
    for name, (place, got, want) in zip(names, groups, strict=True):
        for role, g, w in zip(place.roles, got, want, strict=True):
            label = f"the {role} of {name}" if role else name
            if g.shape != w.shape:
                return f"{label} has shape {tuple(g.shape)} instead of {tuple(w.shape)}"
            if g.dtype != w.dtype:
                return f"{label} has dtype {g.dtype} instead of {w.dtype}"
        for role, g, w in reversed(list(zip(place.roles, got, want, strict=True))):
            label = f"the {role} of {name}" if role else name
            wrong = _wrong(g, w, tolerance)
            if bool(wrong.any()):
                at = tuple(wrong.nonzero()[0].tolist())
                return (
                    f"{int(wrong.sum())} of {wrong.numel()} entries of {label} differ, "
                    f"the first at {at}: {g[at].item()} instead of {w[at].item()}"
                )
    return None


def _wrong(found: Tensor, expected: Tensor, tolerance: Tolerance) -> Tensor:
    """Where two tensors differ; NaN equals NaN."""
    if not expected.is_floating_point():
        return found != expected
    usual = TOLERANCES.get(expected.dtype, (0.1, 0.1))
    rtol, atol = (u if given is None else given for u, given in zip(usual, tolerance, strict=True))
    return ~torch.isclose(found.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)
