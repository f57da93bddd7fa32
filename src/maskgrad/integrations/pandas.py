"""pandas: unknown objects are stored in columns and used in arithmetic."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals

__all__ = ["INTEGRATION"]

_TABLE = "a table has columns of its own for what is missing, and would keep an object or lose the mask"
_TO_PANDAS = "Write mg.interop.to_pandas(x), or x.tolist() for a column and x.item() for a number."

INTEGRATION = Integration(
    "pandas",
    without="keeps an object",
    patches=(
        *refusals(
            "indexing:_LocationIndexer.__setitem__ indexing:_ScalarAccessIndexer.__setitem__ algorithms:isin "
            "groupby.grouper:get_grouper",
            _TABLE,
            _TO_PANDAS,
            "test_pandas.py::test_masked_tensors_refuse",
            "pandas.core.",
        ),
        *refusals(
            "frame:DataFrame._align_for_op generic:NDFrame._inplace_method",
            _TABLE,
            _TO_PANDAS,
            "test_pandas.py::test_arithmetic_refuses",
            "pandas.core.",
        ),
    ),
)
