"""polars: unknown objects are compared and computed with."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

_COLUMN = "a column has its own way to say what is missing"
_TO_POLARS = "Write mg.interop.to_polars(x), or pl.Series(x), whose nulls are what is unspecified."

INTEGRATION = Integration(
    "polars",
    without="keeps an object",
    patches=(
        *refusals(
            "series.series:Series._arithmetic series.series:Series._comp dataframe.frame:DataFrame._comp "
            "dataframe.frame:_prepare_other_arg",
            _COLUMN,
            _TO_POLARS,
            "test_polars.py::test_arithmetic_refuses",
            "polars.",
        ),
    ),
)
