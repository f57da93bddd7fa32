"""Link targets on other projects' sites, kept as short lists so that the pages build without a network.

Sphinx usually downloads each site's ``objects.inv``. A build machine may reach nothing but the package index,
and a build should not depend on another site's weather; so the few names that our pages mention are listed
here, and a link to a name that is not listed fails the build. The remedy is one more word in a list.
"""

from __future__ import annotations

import zlib
from pathlib import Path

HERE = Path(__file__).parent


def write_inventory(project: str, target: Path) -> None:
    """Turn ``<project>.txt`` into the inventory file, version 2, that Sphinx reads.

    A line has a page ("*" stands for the name), a kind, and names; ``np.ndarray=numpy.ndarray`` is a name that
    our signatures spell otherwise.
    """
    header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    header += "# The remainder of this file is compressed using zlib.\n"
    entries = [
        f"{known_as or name} py:{kind} 1 {page.replace('*', name)}#{name} -\n"  # "-": the title is the name
        for line in (HERE / f"{project}.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
        for page, kind, *words in [line.split()]
        for known_as, _, name in [word.rpartition("=") for word in words]
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(header.encode() + zlib.compress("".join(entries).encode()))
