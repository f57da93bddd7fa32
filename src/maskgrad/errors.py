"""What maskgrad raises: a class for each reason, which says what to write instead.

- :class:`UndefinedOnMaskedError`: the operation has no meaning on incomplete data.
- :class:`UnsupportedOperationError`: there is no rule yet for what the operation means.
- :class:`NotExportableError`: the operation runs eagerly, but cannot be written into a file or a graph.
- :class:`ExportMismatchError`: the exported file gives other results than the model.
- :class:`UnspecifiedValueError`: ``.item()`` and the like on an unspecified entry.
- :class:`CoupledSamplesError`: per-sample gradients of samples that influence each other.
- :class:`ExaminationError`: the doctor cannot examine a program: which argument or property of it is in the way.
- :class:`LostRankError`: another process has ended or does not answer.
- :class:`MissingDependencyError`: an optional package is absent, broken, too old or too new; it names what works.
- :class:`IntegrationWarning`: a package is loaded for which :func:`maskgrad.integrations.install` was not called.
- :class:`TorchPatchWarning`: a PyTorch that is not known yet; ``maskgrad info`` says what is off.

Mistakes in an argument (a mask of the wrong dtype, an index outside the table) are plain
``TypeError``, ``ValueError`` and ``IndexError``, as they are in PyTorch. Every message names the
argument, what was expected, what was found, and the remedy.
"""

from __future__ import annotations

import torch

__all__ = [
    "CoupledSamplesError",
    "DependsOnNumbersError",
    "ExaminationError",
    "ExportMismatchError",
    "IntegrationWarning",
    "LostRankError",
    "MaskgradError",
    "MissingDependencyError",
    "NotExportableError",
    "TorchPatchWarning",
    "UndefinedOnMaskedError",
    "UnspecifiedValueError",
    "UnsupportedAttributeError",
    "UnsupportedLayoutError",
    "UnsupportedOperationError",
]


class MaskgradError(Exception):
    """Base of the errors that only maskgrad raises."""

    def __init__(self, *args: object) -> None:
        if (
            torch.compiler.is_dynamo_compiling()
        ):  # which cannot trace the constructor of an exception, before 2.15
            torch._dynamo.graph_break(msg=str(args[0]))
        super().__init__(*args)


class UndefinedOnMaskedError(MaskgradError, TypeError):
    """The operation has no meaning on incomplete data: which one, why, and what to do instead."""

    def __init__(self, operation: str, reason: str, remedy: str) -> None:
        self.operation, self.reason, self.remedy = operation, reason, remedy
        super().__init__(f"{operation} is undefined on a MaskedTensor: {reason}. {remedy}")


class UnsupportedOperationError(MaskgradError, TypeError):
    """There is no rule for what the operation means on masked data; it is never guessed."""

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
    """The operation cannot be written into a file or a graph: which one, why, and what to do instead."""

    def __init__(self, operation: str, reason: str, remedy: str) -> None:
        self.operation, self.reason, self.remedy = operation, reason, remedy
        TypeError.__init__(self, f"{operation} cannot be exported: {reason}. {remedy}")


class DependsOnNumbersError(NotExportableError):
    """The control flow depends on values of tensors, which are known in a run only."""


class ExaminationError(MaskgradError, ValueError):
    """The doctor cannot examine a program: which argument or property of it is in the way, and what to do."""


class ExportMismatchError(MaskgradError, RuntimeError):
    """The exported file gives other results than the model; nothing was written."""


class UnspecifiedValueError(MaskgradError, ValueError):
    """``.item()``, ``float()`` and the like on an unspecified entry."""


class CoupledSamplesError(MaskgradError, ValueError):
    """Samples of a batch influence each other, so that the gradient of each is not defined or not cheap."""


class LostRankError(MaskgradError, RuntimeError):
    """Another process has ended, is late, or calls something else; nothing was changed in this one."""


class MissingDependencyError(MaskgradError, ImportError):
    """An optional package is absent, too old, too new or broken; the message names what to install.

    ``finding`` says what is wrong and what to do; without it the package is absent, and the extra brings it.
    """

    def __init__(self, package: str, extra: str, purpose: str, finding: str = "") -> None:
        self.package, self.extra = package, extra
        absent = f"which is not installed; install it with: pip install 'maskgrad[{extra}]'"
        super().__init__(f"{purpose} needs the package {package!r}, {finding or absent}")


class UnsupportedLayoutError(MaskgradError, TypeError):
    """The operation exists, but not on this storage layout; nothing becomes dense unless you ask for it."""

    def __init__(self, operation: str, layout: object, shape: tuple[int, ...] | None = None) -> None:
        self.operation, self.layout = operation, layout
        size = f", which allocates the whole shape {shape}" if shape is not None else ""
        super().__init__(
            f"{operation} does not work on entries stored as {layout}. Convert explicitly with x.to_dense(){size}"
        )


class IntegrationWarning(UserWarning):
    """A loaded package may be wrong on MaskedTensors without an error; names the line that prevents it."""


class TorchPatchWarning(UserWarning):
    """This PyTorch lacks something that maskgrad completes: what, and what does not work without it."""
