"""Why doctor and oracle disagree on a model, in one line each."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

#: by the name of the model
EXPLAINED: dict[str, str] = {
    "jetmoe": (
        "the doctor is wrong. How many tokens each expert has is read as a Python list, which the doctor cannot follow "
        "for other padding. It would ask the step as a whole, but this head tests ids for padding, and the step as a "
        "whole would be given others. The note in its report says what was not followed; the head with a language "
        "model tests no ids, and is clean"
    ),
}
