"""Random programs of operations, views and writes, and what must not change when they are run again.

    python -m tests.random_programs --number 100000 --first 0

A program is drawn on plain tensors, so that PyTorch has run it; then it is run on masked ones. Three things are asked:

- everything specified: results and gradients are PyTorch's (law 1), views and writes included;
- other garbage under the masks: the same masks, results and gradients, and none at an unspecified entry (law 2);
- entries stored in another layout: the same entries, until an operation refuses the layout, or writes (sparse layouts
  have no views).

A program that fails is made shorter as long as it fails, and printed as Python that can be run.

Some are also run in forward mode, differentiated twice, or compiled. Programs that are nothing but views and writes are
compared with PyTorch on plain values, entry by entry: ``check_writes``, and on the command line ``--writes``.
"""

from tests.random_programs.comparisons import check as _check
from tests.random_programs.drawing import draw
from tests.random_programs.runs import Failure
from tests.random_programs.shrinking import examined
from tests.random_programs.writing import check_writes as _check_writes
from tests.random_programs.writing import draw_writes

__all__ = ["Failure", "check", "check_writes"]


def check(seed: int) -> str:
    """Draw a program and compare its runs; the kinds of comparison that were made."""
    return examined(_check, draw(seed))


def check_writes(seed: int) -> str:
    """The same for a program of views and writes."""
    return examined(_check_writes, draw_writes(seed))
