"""The family of refusals: each kind of "no" is its own kind of exception.

- :class:`UndefinedOnMaskedError`: never; the operation has no meaning on incomplete data.
- :class:`UnsupportedOperationError`: not yet; nobody has told maskgrad what the operation means.
- :class:`NotExportableError`: the operation runs here, but has no place in a file or a graph.
- :class:`ExportMismatchError`: what was to be written gives other results than the model.
- :class:`UnspecifiedValueError`: a plain number was asked of an entry that has none.
- :class:`CoupledSamplesError`: a gradient for each sample was asked of samples that influence each other.
- :class:`ExaminationError`: the doctor cannot examine a program: which argument or property of it is in the way.
- :class:`LostRankError`: another process has ended or does not answer.
- :class:`MissingDependencyError`: an optional package is absent, broken, too old or too new; it names what works.
- :class:`TorchPatchWarning`: a PyTorch that is not known yet; ``maskgrad info`` says what is off.

Mistakes in an argument (a mask of the wrong dtype, an index outside the table) are plain
``TypeError``, ``ValueError`` and ``IndexError``, as they are in PyTorch. Every message names the
argument, what was expected, what was found, and the remedy.
"""

from __future__ import annotations

__all__ = [
    "CoupledSamplesError",
    "DependsOnNumbersError",
    "ExaminationError",
    "ExportMismatchError",
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


class UndefinedOnMaskedError(MaskgradError, TypeError):
    """The operation has no meaning on incomplete data: which one, why, and what to do instead."""

    def __init__(self, operation: str, reason: str, remedy: str) -> None:
        self.operation, self.reason, self.remedy = operation, reason, remedy
        super().__init__(f"{operation} is undefined on a MaskedTensor: {reason}. {remedy}")


class UnsupportedOperationError(MaskgradError, TypeError):
    """No record says what the operation means on masked data; it is refused, never guessed."""

    def __init__(self, operation: str, detail: str = "", instead: str = "") -> None:
        self.operation = operation
        because = detail or "no record says what it means on masked data"
        remedy = instead or (
            "Pass a plain tensor made with x.filled(value) or x.compressed(), or select a fully specified part first."
        )
        super().__init__(f"{operation} does not support MaskedTensor: {because}. {remedy}")


class UnsupportedAttributeError(UnsupportedOperationError, AttributeError):
    """The same for a method or property that ``torch.Tensor`` has; ``hasattr`` is False for it."""


class NotExportableError(UnsupportedOperationError):
    """The operation runs here, but has no place in a file or a graph: which one, why, and what to do instead."""

    def __init__(self, operation: str, reason: str, remedy: str) -> None:
        self.operation, self.reason, self.remedy = operation, reason, remedy
        TypeError.__init__(self, f"{operation} cannot be exported: {reason}. {remedy}")


class DependsOnNumbersError(NotExportableError):
    """The course of the computation, not only its results, depends on numbers that are known in a run only."""


class ExaminationError(MaskgradError, ValueError):
    """The doctor cannot examine a program: which argument or property of it is in the way, and what to do."""


class ExportMismatchError(MaskgradError, RuntimeError):
    """What was to be written gives other results than the model does; nothing was written."""


class UnspecifiedValueError(MaskgradError, ValueError):
    """A plain number was asked of an entry that is unspecified."""


class CoupledSamplesError(MaskgradError, ValueError):
    """Samples of a batch influence each other, so that no cheap way gives the gradient of each; it is not guessed."""


class LostRankError(MaskgradError, RuntimeError):
    """Another process has ended, does not come in time, or does something else; nothing was changed in this one."""


class MissingDependencyError(MaskgradError, ImportError):
    """An optional package is absent, too old, too new or broken; the message names what to install.

    ``finding`` says what is wrong and what to do; without it the package is absent, and the extra brings it.
    """

    def __init__(self, package: str, extra: str, purpose: str, finding: str = "") -> None:
        self.package, self.extra = package, extra
        absent = f"which is not installed; install it with: pip install 'maskgrad[{extra}]'"
        super().__init__(f"{purpose} needs the package {package!r}, {finding or absent}")


class UnsupportedLayoutError(MaskgradError, TypeError):
    """The operation exists, but not on this storage layout; nothing is made dense behind the user's back."""

    def __init__(self, operation: str, layout: object, shape: tuple[int, ...] | None = None) -> None:
        self.operation, self.layout = operation, layout
        size = f", which allocates the whole shape {shape}" if shape is not None else ""
        super().__init__(
            f"{operation} does not work on entries stored as {layout}. Convert explicitly with x.to_dense(){size}"
        )


class TorchPatchWarning(UserWarning):
    """This PyTorch lacks something that maskgrad completes: what, and what does not work without it."""
