"""Run many programs; long runs show how far they are."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch
from rich.console import Console
from rich.progress import track

from tests.random_programs import Failure, check, check_writes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="how many failures are printed")
    parser.add_argument("--writes", action="store_true", help="programs of views and writes")
    given = parser.parse_args()
    run = check_writes if given.writes else check
    torch.set_num_threads(1)
    console = Console(markup=False, highlight=False)
    kinds: Counter[str] = Counter()
    for seed in track(range(given.first, given.first + given.number), description="programs"):
        try:
            kinds[run(seed)] += 1
        except Failure as failure:  # noqa: PERF203  # each is counted, and the first are shown
            kinds["failed"] += 1
            if kinds["failed"] <= given.show:
                console.print(failure, end="\n\n")
    console.print(dict(kinds))
    return 1 if kinds["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
