"""Exceptions and warnings of maskgrad, one class for each reason.

- :class:`UndefinedOnMaskedError`: the operation has no meaning on incomplete data.
- :class:`UnsupportedOperationError`: the operation is not supported on masked data.
- :class:`NotExportableError`: the operation runs eagerly, but cannot be exported to a file or a graph.
- :class:`ExportMismatchError`: the exported file gives different results from the model.
- :class:`UnspecifiedValueError`: ``.item()`` and the like on an unspecified entry.
- :class:`CoupledSamplesError`: per-sample gradients of samples that influence each other.
- :class:`ExaminationError`: the doctor cannot examine a program; names the argument or property that prevents it.
- :class:`LostRankError`: another process has ended or does not respond.
- :class:`MissingDependencyError`: an optional package is absent, broken, too old or too new; says what to install.
- :class:`IntegrationWarning`: part of a package needs :func:`maskgrad.integrations.install`; names the part.
- :class:`TorchPatchWarning`: unknown version of PyTorch; ``maskgrad info`` lists what does not work.

Mistakes in an argument (a mask of the wrong dtype, an index outside the table) are plain
``TypeError``, ``ValueError`` and ``IndexError``, as they are in PyTorch. Every message names the
argument, what was expected, what was found, and the remedy.
"""

from __future__ import annotations

import torch

from maskgrad.mode import TRACED, mode

__all__ = [
    "CoupledSamplesError", "DependsOnNumbersError", "ExaminationError", "ExportMismatchError",
    "IntegrationWarning", "LostRankError", "MaskgradError", "MissingDependencyError", "NotExportableError",
    "TorchPatchWarning", "UndefinedOnMaskedError", "UnspecifiedValueError", "UnsupportedAttributeError",
    "UnsupportedLayoutError", "UnsupportedOperationError",
]  # fmt: skip


class MaskgradError(Exception):
    """Base of the errors that only maskgrad raises."""

    def __init__(self, *args: object) -> None:
        if mode() in TRACED:  # Dynamo cannot trace the constructor of an exception, before 2.15
            torch._dynamo.graph_break(msg=str(args[0]))
        super().__init__(*args)


class UndefinedOnMaskedError(MaskgradError, TypeError):
    """The operation has no meaning on incomplete data; says why, and what to do instead."""

    def __init__(self, operation: str, reason: str, remedy: str) -> None:
        self.operation, self.reason, self.remedy = operation, reason, remedy
        super().__init__(f"{operation} is undefined on a MaskedTensor: {reason}. {remedy}")


class UnsupportedOperationError(MaskgradError, TypeError):
    """The operation is not supported on masked data; maskgrad never guesses a meaning."""

    def __init__(self, operation: str, detail: str = "", instead: str = "") -> None:
        self.operation = operation
        because = f": {detail}" if detail else ""
        remedy = instead or (
            "Pass a plain tensor made with x.filled(value) or x.compressed(), for a pair of them mg.align(x, y), or "
            "select a fully specified part first."
        )
        super().__init__(f"{operation} does not support MaskedTensor{because}. {remedy}")


class UnsupportedAttributeError(UnsupportedOperationError, AttributeError):
    """A method or property of ``torch.Tensor`` that a MaskedTensor does not have; ``hasattr`` is False for it."""


class NotExportableError(UnsupportedOperationError):
    """The operation cannot be exported to a file or a graph; says why, and what to do instead."""

    def __init__(self, operation: str, reason: str, remedy: str) -> None:
        self.operation, self.reason, self.remedy = operation, reason, remedy
        TypeError.__init__(self, f"{operation} cannot be exported: {reason}. {remedy}")


class DependsOnNumbersError(NotExportableError):
    """The control flow depends on tensor values, which are known only at run time."""


class ExaminationError(MaskgradError, ValueError):
    """The doctor cannot examine a program; names the argument or property that prevents it, and what to do."""


class ExportMismatchError(MaskgradError, RuntimeError):
    """The exported file gives different results from the model; nothing was written."""


class UnspecifiedValueError(MaskgradError, ValueError):
    """``.item()``, ``float()`` and the like on an unspecified entry."""


class CoupledSamplesError(MaskgradError, ValueError):
    """Samples of a batch influence each other, so per-sample gradients are undefined or expensive."""


class LostRankError(MaskgradError, RuntimeError):
    """Another process has ended, is late, or calls something else; nothing was changed in this process."""


class MissingDependencyError(MaskgradError, ImportError):
    """An optional package is absent, too old, too new or broken; the message says what to install.

    ``finding`` says what is wrong and what to do; by default: not installed, install the extra.
    """

    def __init__(self, package: str, extra: str, purpose: str, finding: str = "") -> None:
        self.package, self.extra = package, extra
        absent = f"which is not installed; install it with: pip install 'maskgrad[{extra}]'"
        super().__init__(f"{purpose} needs the package {package!r}, {finding or absent}")


class UnsupportedLayoutError(MaskgradError, TypeError):
    """The operation exists, but not for this storage layout; conversion to dense is never implicit."""

    def __init__(self, operation: str, layout: object, shape: tuple[int, ...] | None = None) -> None:
        self.operation, self.layout = operation, layout
        size = f", which allocates the whole shape {shape}" if shape is not None else ""
        super().__init__(
            f"{operation} is not supported for the layout {layout}. Convert explicitly with x.to_dense(){size}"
        )


class IntegrationWarning(UserWarning):
    """A part of a loaded package may give wrong results without an error; names it, and the line that prevents it."""


class TorchPatchWarning(UserWarning):
    """This PyTorch lacks something that maskgrad patches; says what, and what does not work without it."""
