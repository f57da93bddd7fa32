"""Comparison of an exported file with the model, before the file is moved to its path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.errors import ExportMismatchError, NotExportableError
from maskgrad.export.capture import Plain
from maskgrad.export.ports import Ports

__all__ = ["Session", "Tolerance", "compared_with", "variations"]


class Session:
    """A file loaded by ONNX Runtime, on the CPU for tensors on any device."""

    def __init__(self, path: str | Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised
        options.intra_op_num_threads = torch.get_num_threads()
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise NotExportableError(
                "the model",
                f"ONNX Runtime cannot load it: {first_line(error)}",
                "Use another dtype or other operations, or pass verify=False if it is for another runtime",
            ) from error

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of the file for these inputs, in order."""
        import onnxruntime

        given = {}
        for port, tensor in zip(self._session.get_inputs(), tensors, strict=True):
            plain = tensor.detach().cpu().contiguous()
            if plain.dtype == torch.bfloat16:  # NumPy has no bfloat16
                given[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    plain.view(torch.uint16).numpy(), BFLOAT16
                )
            else:
                given[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(plain.resolve_neg().numpy())
        results = self._session.run_with_ort_values(None, given)
        return [_tensor(value) for value in results]


#: ``onnx.TensorProto.BFLOAT16``
BFLOAT16 = 16


def _tensor(value: Any) -> Tensor:
    if value.element_type() == BFLOAT16:
        return torch.from_dlpack(value._get_c_value().to_dlpack())  # type: ignore[attr-defined]
    return torch.from_numpy(value.numpy().copy())


def first_line(error: BaseException) -> str:
    """Return a message, truncated to 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}…"


Tensors = tuple[Tensor, ...]


def variations(
    ports: Ports, tensors: Sequence[Tensor], varying: Sequence[Mapping[int, int]]
) -> Iterator[tuple[str, Tensors]]:
    """Yield other inputs: a description, and the plain tensors.

    ``varying`` holds, for each size that may vary, the tensors with this size, each with the dimension.
    """
    given = tuple(tensors)
    yield "as given, with garbage under the masks", _with_masks(ports, given)
    if any(t.dtype == torch.bool for t in given):
        yield "with nothing specified", _with_masks(ports, given, torch.zeros_like)
        yield "with everything specified", _with_masks(ports, given, torch.ones_like)
        yield "with the masks inverted", _with_masks(ports, given, torch.logical_not)
    stored = [place.is_stored for place in ports.places for _ in place.roles]
    for places in varying:
        tensor, dimension = next(iter(places.items()))
        size = given[tensor].shape[dimension]
        if not any(stored[i] for i in places):
            for number in {1, size + 1} - {size} if size else ():
                words = f"with size {number} instead of {size} in a dynamic dimension"
                yield words, _with_masks(ports, _resized(given, places, number))
    if any(stored[i] for places in varying for i in places):
        yield "with one stored entry less", _with_masks(ports, _with_one_entry_less(ports, given))


def _with_one_entry_less(ports: Ports, tensors: Tensors) -> Tensors:
    """Drop the last entry of COO layouts; for others the pointers would have to change, too."""
    changed: list[Tensor] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        if place.roles == ("values", "indices"):
            values, indices = group
            changed += [values[:-1], indices[:, :-1]]
        else:
            changed += group
    return tuple(changed)


def _with_masks(
    ports: Ports, tensors: Tensors, change: Callable[[Tensor], Tensor] = lambda mask: mask
) -> Tensors:
    """Change all masks, plain Boolean arguments included, and fill garbage under the new ones."""
    changed: list[Tensor] = []
    for place, group in zip(ports.places, ports.groups(tensors), strict=True):
        if place.is_masked:
            values, mask = group
            new = change(mask)
            specified = values[mask]
            ordinary = specified[0] if len(specified) else values.new_ones(())
            kept = torch.where(mask, values, ordinary)  # for newly specified entries
            garbage: float = True
            if values.dtype != torch.bool:
                garbage = math.nan if values.is_floating_point() else torch.iinfo(values.dtype).max
            changed += [torch.where(new, kept, values.new_full((), garbage)), new]
        else:
            changed += [change(t) if t.dtype == torch.bool else t for t in group]
    return tuple(changed)


def _resized(tensors: Tensors, places: Mapping[int, int], number: int) -> Tensors:
    """Give each tensor ``number`` samples, repeating the first ones if there are too few."""
    resized = list(tensors)
    for i, at in places.items():
        chosen = torch.arange(number, device=tensors[i].device) % tensors[i].shape[at]
        resized[i] = tensors[i].index_select(at, chosen)
    return tuple(resized)


#: rtol and atol; None follows the dtype.
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
    """Compare results on the given inputs and on variations of them; return descriptions of these.

    A variation is skipped if the model itself raises (for example if an argument has a fixed number of rows).
    """
    agreed: list[str] = []
    for words, inputs in variations(plain.ports, tensors, varying):
        try:
            expected = _results(plain, inputs)
        except Exception:
            if not agreed:
                raise
            continue
        _compare(run, plain, inputs, expected, words, tolerance)
        agreed.append(words)
    return tuple(agreed)


def _results(plain: Plain, inputs: Sequence[Tensor]) -> list[Tensor]:
    own = [t.clone() for t in inputs]  # a model may modify its arguments
    with torch.no_grad():
        return [t.detach().cpu() for t in plain(own)]


def _compare(
    run: Any, plain: Plain, inputs: Sequence[Tensor], expected: list[Tensor], words: str, tolerance: Tolerance
) -> None:
    assert plain.results is not None
    ports = plain.results
    try:
        found = run(inputs)
    except Exception as error:
        raise ExportMismatchError(
            f"the file fails {words}, although the model runs: {first_line(error)}"
        ) from error
    difference = _difference(ports, found, expected, tolerance)
    if difference is None:
        return
    if _difference(ports, _results(plain, inputs), expected, tolerance):
        raise ExportMismatchError(
            "the model returns different results in each call, so it cannot be compared with a file; remove "
            "random operations, or pass verify=False"
        )
    raise ExportMismatchError(
        f"the file disagrees with the model {words}: {difference}. Nothing was written; pass rtol and atol if this is "
        "rounding, change the model, or pass verify=False to keep the file"
    )


def _difference(
    ports: Ports, found: list[Tensor], expected: list[Tensor], tolerance: Tolerance
) -> str | None:
    """Describe the first difference; masks come before values."""
    for place, got, want in zip(ports.places, ports.groups(found), ports.groups(expected), strict=True):
        name = "output" + pytree.keystr(place.path)
        labels = [f"the {role} of {name}" if role else name for role in place.roles]
        parts = list(zip(labels, got, want, strict=True))
        for label, g, w in parts:
            if g.shape != w.shape:
                return f"{label} has shape {tuple(g.shape)} instead of {tuple(w.shape)}"
            if g.dtype != w.dtype:
                return f"{label} has dtype {g.dtype} instead of {w.dtype}"
        for label, g, w in reversed(parts):
            wrong = _wrong(g, w, tolerance)
            if bool(wrong.any()):
                at = tuple(wrong.nonzero()[0].tolist())
                return (
                    f"{int(wrong.sum())} of {wrong.numel()} entries of {label} differ, "
                    f"the first at {at}: {g[at].item()} instead of {w[at].item()}"
                )
    return None


def _wrong(found: Tensor, expected: Tensor, tolerance: Tolerance) -> Tensor:
    """Return where two tensors differ; NaN equals NaN."""
    if not expected.is_floating_point():
        return found != expected
    usual = TOLERANCES.get(expected.dtype, (0.1, 0.1))
    rtol, atol = (u if given is None else given for u, given in zip(usual, tolerance, strict=True))
    return ~torch.isclose(found.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)
