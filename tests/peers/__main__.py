"""Run all suites and write the table of docs/proof.md: ``python -m tests.peers``. A difference without a rule fails."""

from __future__ import annotations

import sys
import warnings

from rich.console import Console

from tests.peers.rules import RULES
from tests.peers.suite import judged
from tests.peers.table import PAGE, numbers_of, suites, table


def main() -> int:
    """Run each suite whose package is installed; the others keep the numbers that the table has."""
    warnings.simplefilter("ignore")
    console, rows, faults = Console(markup=False, highlight=False), numbers_of(PAGE.read()), 0
    for name, suite in suites().items():
        if suite is None:
            console.print(f"{name}: not installed")
            continue
        with console.status(f"{suite.name} {suite.version}"):
            result = judged(suite, RULES)
        rows[suite.name] = (suite.version, result.equal, dict(result.explained))
        faults += len(result.faults)
        console.print(f"{suite.name}: {result.equal} equal, {result.explained.total()} explained")
        for case, text in result.faults[:20]:
            console.print(f"  {case}: {text}")
    PAGE.write(table(rows))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
