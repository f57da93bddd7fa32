"""The doctor: where does padding leak, in any PyTorch program? See the page "Is my masking right?"."""

from maskgrad.doctor.examination import examine
from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.hooks import watch
from maskgrad.doctor.report import Experiment, Part, Report, Skipped
from maskgrad.doctor.watching import Watch
from maskgrad.instead import load_ipython_extension, missing_attribute  # noqa: F401  (IPython's name)

__all__ = ["Experiment", "Finding", "Note", "Part", "Report", "Skipped", "Watch", "examine", "watch"]


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
