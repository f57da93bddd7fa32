"""Optional packages: imported on first use, with an error that says what to install if they are missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from types import ModuleType

from maskgrad.errors import MissingDependencyError
from maskgrad.versions import OPTIONAL, Package, is_before, release

__all__ = ["require"]


def require(module: str, purpose: str, extra: str | None = None) -> ModuleType:
    """Import ``module`` of an optional package for ``purpose``, the start of the error message.

    Raises:
        MissingDependencyError: the package is absent, has an unsupported version, or fails to import;
            ``extra`` (by default the first that contains it) installs it.
    """
    name = module.partition(".")[0]
    package = OPTIONAL[name]
    extra = extra or package.extras[0]
    try:
        importlib.import_module(name)
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a broken package may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise MissingDependencyError(name, extra, purpose) from None
        finding = _unfit(name, package, _version(name, package)) or _broken(name, package, error)
        raise MissingDependencyError(name, extra, purpose, finding) from error
    unfit = _unfit(name, package, _version(name, package))
    if unfit:
        raise MissingDependencyError(name, extra, purpose, unfit)
    return imported


def _version(name: str, package: Package) -> str:
    """The package's own version if it is imported, else that of the installed distribution; empty if unknown."""
    said = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(said, str):
        return said
    try:
        return importlib.metadata.version(package.distribution or name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _unfit(name: str, package: Package, version: str) -> str:
    """Message about a version that is too old or too new; empty if the version may be used."""
    if is_before(version, package.least):
        wanted = f"from version {package.least} on"
    elif package.below and not is_before(release(version), package.below):
        wanted = f"from version {package.least} on and before {package.below}"
    else:
        return ""
    return f"{wanted}, and found {version}; install one with: pip install --upgrade '{_requirement(name, package)}'"


def _broken(name: str, package: Package, error: BaseException) -> str:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    version = _version(name, package)
    return (
        f"which is installed{f' ({version})' if version else ''} but cannot be imported: {_shortened(reason)}; "
        f"{f'{package.note}; ' if package.note else ''}"
        f"install it again with: pip install --force-reinstall '{_requirement(name, package)}'"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}…"


def _requirement(name: str, package: Package) -> str:
    upper = f",<{package.below}" if package.below else ""
    return f"{package.distribution or name}>={package.least}{upper}"
