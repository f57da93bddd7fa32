"""Files in the ONNX format: MaskedTensors enter and leave them as data and mask (``pip install 'maskgrad[onnx]'``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.errors import DependsOnNumbersError, NotExportableError
from maskgrad.export import dynamic_dimensions
from maskgrad.export.capture import Plain, captured, evaluating, quiet
from maskgrad.export.ports import (
    Given,
    Ports,
    argument_names,
    input_names_of,
    output_names_of,
    unpack,
)
from maskgrad.export.translation import translated
from maskgrad.export.verification import Session, Tolerance, compared_with
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optional_packages import require

__all__ = ["ExportedFile", "Port", "export"]


@contextlib.contextmanager
def replaced_when_complete(target: Path) -> Iterator[Path]:
    """Yield a path of the same name in a new folder, whose files are moved to the folder of ``target`` at the end.

    After an exception, nothing is changed.
    """
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield folder / target.name
        # weights in a file of their own come first, so that the model is never without them
        for part in sorted(folder.iterdir(), key=lambda part: part.name == target.name):
            os.replace(part, target.parent / part.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Port:
    """Input or output of a file: its name, the dtype of ONNX, and its sizes (names where they may vary)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class ExportedFile:
    """Result of an export.

    Attributes:
        path: path of the file.
        inputs: inputs in the order of the arguments; a mask follows its data.
        outputs: outputs in the order of the results.
        opset_version: version of ONNX's own operators.
        compared: descriptions of the inputs on which ONNX Runtime and the model agreed; empty with ``verify=False``.
    """

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    opset_version: int
    compared: tuple[str, ...]


def export(
    model: Callable[..., Any],
    args: Sequence[Any] | Tensor | MaskedTensor,
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = "batch",
    input_names: Given = None,
    output_names: Given = None,
    opset_version: int | None = None,
    verify: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> ExportedFile:
    """Export a model that takes or returns MaskedTensors to an ONNX file with plain inputs and outputs.

    A MaskedTensor ``x`` is two inputs, ``x`` and ``x_mask`` (Boolean, True = specified); a returned one is two
    outputs, whose data is 0 where the mask is False. A jagged one becomes a padded batch. On a sparse
    layout it is ``x_values`` and ``x_indices`` (COO), or ``x_values``, ``x_pointers`` and ``x_positions``; its sizes
    are part of the file, the number of its entries is not.
    Masks are inputs of each run; those of ``args`` are not part of the file.

    The file is written to a temporary folder, checked by ``onnx.checker``, run by ONNX Runtime and compared with the
    model: with garbage under the masks, with nothing specified, with everything, with inverted masks, and with other
    batch sizes. Only then is it moved to ``path``, atomically replacing an existing file.

    Args:
        model: ``nn.Module``, method of one, or function. It is exported in evaluation mode; its own mode is restored.
        args: positional arguments, or the only one: tensors, MaskedTensors, numbers, strings, None, and lists, tuples
            and dicts of these. Values other than tensors become part of the file.
        path: path of the file to write.
        kwargs: keyword arguments.
        dynamic_shapes: ``"batch"``: the first dimension of all tensors may vary, unless the model fixes it (see
            ``inputs`` of the result). None: none may vary. Else a dict by argument names, with names of dimensions,
            a MaskedTensor being one argument: ``{"x": {0: "batch", 1: "time"}}``; what cannot vary is then an error.
        input_names: a name for each tensor or MaskedTensor; from the signature if absent.
        output_names: the same for results; ``output``, ``output_0``, …, or the keys of a dict if absent.
        opset_version: version of ONNX's operators; 20 if None, supported by ONNX Runtime since 1.17.
        verify: False skips the comparison in ONNX Runtime, for files that only another runtime can run.
        rtol: relative tolerance of the comparison; from the dtype if None.
        atol: absolute tolerance of the comparison; from the dtype if None.

    Returns:
        :class:`ExportedFile`: inputs and outputs with names, dtypes and sizes. Files run forward only: no gradient.

    Raises:
        MissingDependencyError: onnx, onnxscript or onnxruntime is not installed.
        TypeError: an argument or result has another type, is complex, or is a torch sparse tensor.
        ValueError: names or dimensions contradict the arguments.
        OSError: nothing can be written at ``path``.
        NotExportableError: control flow depends on values (``item``, ``tolist``, ``if``), or ONNX lacks an operator.
        ExportMismatchError: the file gives different results from the model.

    Dense equivalent: ``torch.onnx.export(model, args, path, dynamo=True)``.

    Example:
        >>> import os, tempfile, torch, maskgrad as mg
        >>> x = mg.masked(torch.ones(2, 3), torch.ones(2, 3) > 0)
        >>> path = os.path.join(tempfile.mkdtemp(), "mean.onnx")
        >>> [(port.name, port.shape) for port in mg.onnx.export(lambda x: x.mean(1), x, path).inputs]
        [('x', ('batch', 3)), ('x_mask', ('batch', 3))]

    Source: https://docs.pytorch.org/docs/stable/onnx_export.html, https://onnx.ai/onnx/
    """
    target = _target(path, verify)
    args, kwargs = _checked_call(model, args, kwargs)
    arguments = argument_names(model.forward if isinstance(model, nn.Module) else model, len(args))
    ports, tensors = _inputs(args, kwargs)
    names = input_names_of(ports, arguments, input_names)
    tolerance = (rtol, atol) if verify else None
    with evaluating(model), quiet(), replaced_when_complete(target) as draft:
        plain = _run_once(Plain(model, ports).eval(), tensors)
        results = output_names_of(plain.results, output_names, names)  # type: ignore[arg-type]

        def attempt(plan: _Plan) -> ExportedFile:
            return _attempt(plan, plain, tensors, names, results, opset_version, tolerance, draft)

        plans = _plans(dynamic_shapes, ports, tensors, arguments, kwargs)
        return replace(_first_that_works(attempt, plans), path=target)


def _inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Tensor]]:
    """How tensors are passed, and the tensors, without their graph."""
    ports, tensors = unpack((args, kwargs), "args")
    if not tensors:
        raise TypeError("args must contain a tensor or a MaskedTensor: a file needs an input")
    return ports, [t.detach() for t in tensors]


def _run_once(plain: Plain, tensors: Sequence[Tensor]) -> Plain:
    """The same, with its results; errors of the model itself are raised here."""
    with torch.no_grad():
        plain([t.clone() for t in tensors])
    assert plain.results is not None
    return plain


def _target(path: str | os.PathLike[str], verify: bool) -> Path:
    """The file to write, if it can be written here."""
    for package in ("onnx", "onnxscript", *(["onnxruntime"] if verify else [])):
        require(package, "writing an ONNX file")
    target = Path(path).absolute()
    if target.is_dir():
        raise IsADirectoryError(
            f"path must name a file, but {str(path)!r} is a folder; append a file name such as 'model.onnx'"
        )
    return target


#: Dimensions of each tensor that may vary, and whether sizes of 0 and 1 are examples like any other.
_Plan = tuple[list[dict[int, Any]], bool]


def _plans(
    dynamic_shapes: Any,
    ports: Ports,
    tensors: Sequence[Tensor],
    arguments: Sequence[str],
    keywords: Iterable[str],
) -> list[_Plan]:
    """Return the dimensions to try, the most general first; those that the caller gives are the only ones."""
    fixed: list[dict[int, Any]] = [{} for _ in tensors]
    if dynamic_shapes is None:
        return [(fixed, False)]
    if isinstance(dynamic_shapes, str):
        if dynamic_shapes != "batch":
            raise ValueError(
                f'dynamic_shapes must be "batch", None or a dict by argument names, found {dynamic_shapes!r}'
            )
        free = dynamic_dimensions.batch_dimensions(ports, tensors)
        return [(free, True), (free, False), (fixed, False)]
    given = dynamic_dimensions.given_dimensions(dynamic_shapes, ports, tensors, arguments, keywords)
    return [(given, True)]


def _first_that_works(attempt: Callable[[_Plan], ExportedFile], plans: Sequence[_Plan]) -> ExportedFile:
    if len(plans) == 1:
        return attempt(plans[0])
    try:
        return attempt(plans[0])
    except DependsOnNumbersError:
        raise
    except Exception:  # noqa: S110  (the last attempt varies fewer dimensions, and reports)
        pass
    return _first_that_works(attempt, plans[1:])


def _attempt(
    plan: _Plan,
    plain: Plain,
    tensors: list[Tensor],
    names: tuple[str, ...],
    results: tuple[str, ...],
    opset_version: int | None,
    tolerance: Tolerance | None,
    draft: Path,
) -> ExportedFile:
    """Write the file, check it, and compare it with the model, unless ``tolerance`` is None."""
    import onnx

    dimensions, oblivious = plan
    program = captured(plain, tensors, dimensions, oblivious=oblivious)
    varying = dynamic_dimensions.varying_sizes(program, plain.ports)
    written = translated(program, names, results, opset_version)
    graph = written.model.graph
    written.rename_axes(dynamic_dimensions.axis_names(program, plain.ports, names, dimensions))
    for value in (*graph.inputs, *graph.outputs):
        for at, size in enumerate(value.shape or ()):  # a size that turned out to be one number
            if not isinstance(size, int) and str(size).isdigit():
                value.shape[at] = int(str(size))
    written.save(draft)
    try:
        onnx.checker.check_model(str(draft), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise NotExportableError(
            "the model",
            f"PyTorch's exporter writes an invalid ONNX file for it ({error})",
            "Compute the part that is named there outside the exported model",
        ) from error
    compared: tuple[str, ...] = ()
    if tolerance is not None:
        compared = compared_with(plain, Session(draft), tensors, varying, tolerance)
    inputs, outputs = (tuple([_port(value) for value in values]) for values in (graph.inputs, graph.outputs))
    return ExportedFile(draft, inputs, outputs, written.model.opset_imports[""], compared)


def _port(value: Any) -> Port:
    shape = tuple([size if isinstance(size, int) else str(size) for size in value.shape or ()])
    return Port(str(value.name), str(value.dtype).lower(), shape)


def _checked_call(model: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not callable(model):
        raise TypeError(f"model must be an nn.Module or a function, found {type(model).__name__}")
    if isinstance(args, (Tensor, MaskedTensor)):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args must be a tuple of the positional arguments, found {type(args).__name__}; use (x,)"
        )
    return tuple(args), dict(kwargs or {})
