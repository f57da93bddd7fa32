"""Suites need packages that are not everywhere, and hold no tests of their own."""

from __future__ import annotations

collect_ignore_glob = ["suites/*"]
