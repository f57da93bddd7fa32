"""The doctor: where does padding leak, in any PyTorch program? See the page "Is my masking right?"."""

from maskgrad.doctor.examination import examine
from maskgrad.doctor.findings import Finding, Note
from maskgrad.doctor.hooks import watch
from maskgrad.doctor.inventory import Part, Skipped
from maskgrad.doctor.report import Experiment, Report
from maskgrad.doctor.trainers import huggingface_callback, lightning_callback
from maskgrad.doctor.watching import Watch

__all__ = [
    "Experiment",
    "Finding",
    "Note",
    "Part",
    "Report",
    "Skipped",
    "Watch",
    "examine",
    "huggingface_callback",
    "lightning_callback",
    "watch",
]
