"""Why doctor and oracle disagree on a model, in one line each."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

#: by the name of the model
EXPLAINED = {
    "beam": "a difference of 4e-5 in float32, of which the report says that it may be rounding; found in float64",
    "phimoe": "its router draws random numbers in training, which differ between the oracle's runs",
}
