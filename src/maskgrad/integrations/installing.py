"""Adapting other packages to MaskedTensors, on request."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from maskgrad.errors import MissingDependencyError
from maskgrad.integrations.integration import Integration
from maskgrad.integrations.refusing import REFUSING

__all__ = ["KNOWN", "install", "record_of", "uninstall"]

#: Packages with a module here, whose ``INTEGRATION`` is the record.
_MODULES = ("einops", "ignite", "torch_geometric", "torchmetrics", "transformers")
KNOWN = tuple(sorted({*_MODULES, *REFUSING}))


def record_of(package: str) -> Integration:
    """Return the record of a known package, without importing the package."""
    if package not in KNOWN:
        raise ValueError(
            f"package must be one of {', '.join(KNOWN)}, found {package!r}. Other packages need no installation, or "
            "are not supported; see the page 'With other libraries'"
        )
    if package in REFUSING:
        return REFUSING[package]
    found: Integration = importlib.import_module(f"maskgrad.integrations.{package}").INTEGRATION
    return found


def install(*packages: str) -> tuple[Integration, ...]:
    """Adapt other packages to MaskedTensors, where they would be wrong or fail with an obscure error.

    Importing maskgrad changes no other package. This function replaces some functions of the named packages: they
    then handle MaskedTensors, or raise an error that says what to write. It can be called before or after importing
    these packages, and more than once.

    Args:
        packages: import names of packages. Packages that are not imported yet are imported.
            Without names: every known package that is imported.

    Returns:
        The records of these packages: what was replaced, why, and whether it succeeded.

    Raises:
        ValueError: an unknown name; the message lists the known ones. Nothing is installed then.
        MissingDependencyError: a package is not installed in this environment.

    Dense equivalent: none; plain tensors are handled as before.

    Example:
        >>> import maskgrad as mg
        >>> mg.integrations.install("transformers", "torch_geometric")  # doctest: +SKIP
    """
    if not packages:
        found: dict[str, Integration] = {}
        while new := [
            name for name in KNOWN if name in sys.modules and name not in found
        ]:  # they import each other
            found |= {record.package: record for record in install(*new)}
        return tuple(found.values())
    records = [record_of(package) for package in packages]
    for record in records:
        if record.package not in sys.modules and importlib.util.find_spec(record.package) is None:
            finding = "which is not installed; omit it, or install it with pip"
            raise MissingDependencyError(record.package, "", f"install({record.package!r})", finding)
    for record in records:
        importlib.import_module(record.package)
        record.install()
    return tuple(records)


def uninstall(*packages: str) -> None:
    """Undo :func:`install`, for the named packages or for all."""
    for package in packages or KNOWN:
        record_of(package).uninstall()
