"""Tracing a model with torch.export, as a function of plain tensors."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.errors import DependsOnNumbersError
from maskgrad.export.ports import TENSOR, Ports, pack, unpack
from maskgrad.export.translation import causes
from maskgrad.kernels import use_kernels
from maskgrad.masked_tensor import MaskedTensor, dispatch
from maskgrad.masked_tensor.instead import name_of

__all__ = ["Plain", "captured", "evaluating", "quiet"]

#: Folders of the two libraries: frames elsewhere belong to the user.
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))

#: Names of files of generated code.
MADE = ("<eval_with_key>", "<frozen", "<string>")

REMEDY = (
    "Use tensors (torch.where(c, a, b) for `if`, x.filled(value) for plain values, x.to_dense() for a sparse "
    "layout), or compute this outside the exported function and pass it as a tensor"
)


class Plain(nn.Module):
    """A model as a function of plain tensors to a tuple of them; ``results``: structure of the latest results."""

    def __init__(self, model: Callable[..., Any], ports: Ports) -> None:
        super().__init__()
        self.model: Any = model
        # modules in a function's closure have parameters of the graph, too
        if not isinstance(model, nn.Module):
            self.behind = nn.ModuleList(modules_behind(model))
        self.ports = ports
        self.results: Ports | None = None

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the model on arguments packed from these tensors, with the reference kernels."""
        args, kwargs = pack(self.ports, tensors)
        with use_kernels("reference"):
            self.results, parts = unpack(self.model(*args, **kwargs), "output")
        for leaf in self.results.leaves:
            if leaf is not None and leaf is not TENSOR:
                raise TypeError(
                    f"the model returns {leaf!r}, which does not depend on its inputs; "
                    "return tensors, MaskedTensors, None and containers of these"
                )
        return tuple(parts)


def captured(
    plain: Plain, tensors: Sequence[Tensor], dimensions: Sequence[dict[int, Any]], *, oblivious: bool
) -> torch.export.ExportedProgram:
    """Trace ``plain`` on examples of its inputs, whose ``dimensions`` may vary.

    ``oblivious``: sizes 0 and 1 are ordinary examples; otherwise they become part of the graph.

    Raises:
        DependsOnNumbersError: control flow depends on values known only at run time.
    """
    from torch.fx.experimental import _config

    shapes = tuple([dict(d) or None for d in dimensions]) if any(dimensions) else None
    sizes: Any = contextlib.nullcontext()
    if oblivious and shapes is not None:
        sizes = _config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    try:
        with torch.no_grad(), sizes:
            return torch.export.export(
                plain, (tuple(tensors),), dynamic_shapes=(shapes,) if shapes else None, strict=False
            )
    except Exception as error:
        if _depends_on_numbers(error):
            operation, where = _blamed(error)
            raise DependsOnNumbersError(
                operation,
                f"control flow{where} depends on values that are known only at run time",
                REMEDY,
            ) from error
        raise


def _depends_on_numbers(error: BaseException) -> bool:
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
    return any(isinstance(cause, kinds) for cause in causes(error))


def _blamed(error: BaseException) -> tuple[str, str]:
    """Return the failed operation of torch or method of ours, and the user's line that called it."""
    operation, where = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if not code.co_filename.startswith((*LIBRARIES, *MADE)):
            where = f" (in {code.co_name}, {Path(code.co_filename).name}:{line})"
            operation = ""
        elif not operation:
            operation = _operation(frame, code)
    return operation or "reading a value of a tensor in Python", where


def _operation(frame: FrameType, code: CodeType) -> str:
    if code is dispatch.call.__code__:
        return name_of(frame.f_locals["function"])
    owner = frame.f_locals.get("self")
    if isinstance(owner, MaskedTensor) and getattr(MaskedTensor, code.co_name, None) is not None:
        return f"MaskedTensor.{code.co_name}"
    return ""


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set the modules of ``model`` to evaluation mode, and restore their modes afterwards."""
    modules = [module for root in modules_behind(model) for module in root.modules()]
    training = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            module.training = mode


def modules_behind(model: Any) -> list[nn.Module]:
    """Return the model itself, the module whose method it is, or the modules that a function closes over."""
    if isinstance(model, nn.Module):
        return [model]
    found = [getattr(model, "__self__", None)]
    for cell in getattr(model, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    return [module for module in found if isinstance(module, nn.Module)]


#: PyTorch's internal warnings during export; none concerns the model.
NOTICES = (
    r".*isinstance\(treespec, LeafSpec\).*",
    r".*torch\.jit\.\w+.*deprecated.*",
    r".*TreeSpec.*deprecated.*",
    r".*_check_is_size will be removed.*",
    r".*\.grad attribute of a Tensor that is not a leaf.*",
    r".*_flat_weights\[\d+\] (was|were) assigned during export.*",
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence PyTorch's internal warnings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for notice in NOTICES:
            warnings.filterwarnings("ignore", notice)
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
