"""From a program of torch.export to a graph of ONNX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from maskgrad.errors import NotExportableError
from maskgrad.export.decompositions import decomposed
from maskgrad.export.graph_names import ports_named
from maskgrad.export.runtime_repairs import repaired
from maskgrad.export.traced_shapes import right_shapes
from maskgrad.export.translations import translations

__all__ = ["translated"]

#: The first in which volumes can be sampled on a grid.
OPSET = 20


def translated(
    program: torch.export.ExportedProgram,
    input_names: Sequence[str],
    output_names: Sequence[str],
    opset_version: int | None,
) -> Any:
    """The program as a ``torch.onnx.ONNXProgram``.

    Raises:
        NotExportableError: no operator of ONNX does what an operation of the program does.
        ValueError: the opset is one into which it cannot be written.
    """
    try:
        with right_shapes():
            written: Any = torch.onnx.export(
                decomposed(program),
                (),
                dynamo=True,
                opset_version=OPSET if opset_version is None else opset_version,
                custom_translation_table=translations(),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise NotExportableError(
            _operation(error),
            "it cannot be written with operators of ONNX",
            "Compute it outside the exported model, or with other operations of the same value",
        ) from error
    ports_named(written.model, input_names, output_names)
    repaired(written.model)
    found = written.model.opset_imports[""]
    if opset_version is not None and found != opset_version:
        raise ValueError(
            f"opset_version {opset_version} has no room for this model, which was written for {found}; "
            f"pass opset_version={found}, or None for {OPSET}"
        )
    return written


def _operation(error: BaseException) -> str:
    """The operation that the exporter names, in its words or in those of a cause."""
    cause: BaseException | None = error
    while cause is not None:
        named = re.search(r"OpOverload\(op='([\w.:]+)', overload='(\w+)'\)", str(cause)) or re.search(
            r"target=(aten\.\w+)\.(\w+)", str(cause)
        )
        if named:
            return f"torch.ops.{named[1].replace('::', '.')}"
        cause = cause.__cause__ or cause.__context__
    return "an operation of the model"
