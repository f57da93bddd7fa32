"""Suites need packages that are not everywhere, and hold no tests of their own."""

collect_ignore_glob = ["suites/*"]
