"""What to write instead of names that do not exist: removed, of other libraries, in another module, or misspelt.

``instead.json`` has the lines. By module: names removed from it, kept for one minor version; ``names``: those that
other libraries have, and that one would look for in `mg`; ``attributes``: those of a MaskedTensor; ``functions``:
those of PyTorch that take no MaskedTensor.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

__all__ = ["INSTEAD", "load_ipython_extension", "missing_attribute"]

INSTEAD: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
#: Modules with names of their own, in the order of a search.
PARTS = ("functional", "nn", "optim", "amp", "interop", "metrics", "sparse")


def missing_attribute(module: str, name: str) -> AttributeError:
    """Create the error for ``module.name``, with what to write instead of a removed, foreign or misspelt name."""
    text = f"module {module!r} has no attribute {name!r}"
    instead = INSTEAD.get(module, {}).get(name)
    if instead:
        return AttributeError(f"{text}: it was removed in version 0.4; {instead}")
    meant = _meant(name) if module == "maskgrad" else ""
    return AttributeError(f"{text}; did you mean {meant}?" if meant else text)


def load_ipython_extension(_: object) -> None:
    """``%load_ext maskgrad.doctor``, where it is: only a block knows which cell trains."""
    raise ImportError(
        "%load_ext maskgrad.doctor: the doctor is a block, not an extension; in the cell that trains, write "
        "`with mg.doctor.watch() as watched:` before the loop, and print(watched.report) after it"
    )


def _meant(name: str) -> str:
    """Return what to write instead of ``mg.name``; empty if nothing is near."""
    if name.startswith("_"):
        return ""
    if name in INSTEAD["names"]:
        return INSTEAD["names"][name]
    package = sys.modules["maskgrad"]
    function = name.removeprefix("masked_").removeprefix("nan")
    if function in package.functional.__all__:
        return f"mg.functional.{function}(data, mask=mask), or mg.masked(data, mask).{function}()"
    if hasattr(sys.modules["torch"].nn.functional, function):
        return f"torch.nn.functional.{function}, which takes MaskedTensors"
    for part in PARTS:
        if name in getattr(package, part).__all__:
            return f"mg.{part}.{name}"
    near = difflib.get_close_matches(name, package.__all__, 1, 0.75)
    return f"mg.{near[0]}" if near else ""
