"""Why doctor and oracle disagree on a model, in one line each."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

#: by the name of the model
EXPLAINED: dict[str, str] = {
    "beam": (
        "open: 2e-4 of a gradient with four more columns. The doctor adds one, and counts what differs by 1e-4; which "
        "of the two it is was not looked into"
    ),
    "clip_text_model": (
        "the text ends at its largest id. The oracle leaves the ids of padding as they are; the doctor writes "
        "others there, of which some are larger"
    ),
}
