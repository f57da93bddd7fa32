"""The right programs in ``programs/``: whole ones of a hundred lines and more, in which nothing may be found."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PROGRAMS"]

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
