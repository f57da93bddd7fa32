"""Warnings about other packages, when a MaskedTensor is created after they were imported.

What would be silently wrong in them causes a warning, once, if it is loaded (a model with experts, not transformers
alone), unless ``mg.integrations.install`` was called for the package. No other package is changed here: einops has a
registry.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from maskgrad.errors import IntegrationWarning
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.mode import TRACED, mode

__all__ = [
    "WRONG_IN_SILENCE", "Risk", "level_of_user", "notice_packages", "register_einops", "settle", "unsettle",
]  # fmt: skip


@dataclass(frozen=True)
class Risk:
    """A part of a package that is wrong on MaskedTensors without an error."""

    module: str  # a regular expression: the module that has it
    what: str
    #: an object that is true if a loaded module of that name has it and uses it; looked at again while it is not
    has: Callable[[ModuleType], object] = lambda _: True


def _shared_by_accelerators(module: ModuleType) -> object:
    """A dictionary, empty until a program makes an Accelerator: transformers imports accelerate, too."""
    return getattr(getattr(module, "PartialState", None), "_shared_state", True)


def _generates(module: ModuleType) -> bool:
    """Whether its models are made to generate text; encoders such as BERT can, but are trained to fill in tokens."""
    heads = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    names = [name for name in vars(module) if not name.startswith("Auto")]
    return any(name.endswith(heads) for name in names) and not any(n.endswith("ForMaskedLM") for n in names)


_MODEL = r"transformers(_modules)?\.(\w+\.)*modeling_\w+"
_METRICS = "its metrics divide by the number of all entries"
#: By package. The packages must equal those of the records in ``maskgrad.integrations``; checked by a test.
WRONG_IN_SILENCE = {
    "accelerate": (
        Risk(
            r"accelerate\.state",
            "an Accelerator leaves MaskedTensors whole where it takes parts of a batch",
            _shared_by_accelerators,
        ),
    ),
    "ignite": (Risk(r"ignite\.metrics\.metric", _METRICS),),
    "opacus": (
        Risk(r"opacus\.grad_sample\.grad_sample_module", "its rules compute with unspecified inputs"),
    ),
    "timm": (Risk(r"timm\.utils\.metrics", "accuracy divides by the number of all samples"),),
    "torch_geometric": (
        Risk(r"torch_geometric\.utils\._scatter", "scatter divides by the number of all rows"),
    ),
    "torchjd": (Risk(r"torchjd\.autojac", "each unspecified entry is an objective"),),
    "torchmetrics": (Risk(r"torchmetrics\.metric", _METRICS),),
    "torchvision": (Risk(r"torchvision\.transforms\.v2", "transforms move the values and not the mask"),),
    "transformers": (
        Risk(
            _MODEL,
            "the auxiliary loss of its experts counts unspecified tokens",
            lambda module: hasattr(module, "load_balancing_loss_func"),
        ),
        Risk(_MODEL, "generate() appends tokens behind the padding of shorter sequences", _generates),
        Risk(r"transformers\.data\.data_collator", "collators read lists of numbers"),
    ),
}
_settled: set[Risk] = set()
#: Objects that are true once a risk that is loaded is used.
_unused: list[object] = []
#: Number of modules at the last check.
_seen = [0]
_backends: list[type] = []


def notice_packages() -> None:
    """Check again if modules were imported. This takes less than 0.2 µs, and is not part of compiled graphs."""
    if mode() not in TRACED and (len(sys.modules) != _seen[0] or (_unused and any(_unused))):
        _look()


def _look() -> None:
    _seen[0] = len(sys.modules)
    if "einops._backends" in sys.modules:
        register_einops()
    _unused.clear()
    found = {package: words for package in WRONG_IN_SILENCE if (words := list(_new_risks(package)))}
    if found:
        parts = ", ".join(words for several in found.values() for words in several)
        names = ", ".join(f'"{name}"' for name in found)
        warnings.warn(
            f"{parts} may give wrong results for MaskedTensors without an error. Call "
            f"mg.integrations.install({names}) once, after the imports",
            IntegrationWarning,
            stacklevel=level_of_user(),
        )


def _new_risks(package: str) -> Iterator[str]:
    """Settle the risks of a package that are loaded, and used where that is known; return each with its module."""
    if package not in sys.modules:
        return
    prefix = (package, f"{package}_modules.")  # the latter: code of models from Hugging Face's hub
    loaded = [
        (name, module) for name, module in list(sys.modules.items()) if name.startswith(prefix) and module
    ]
    for risk in WRONG_IN_SILENCE[package]:
        for name, module in loaded if risk not in _settled else ():
            if re.fullmatch(risk.module, name):
                if found := risk.has(module):
                    _settled.add(risk)
                    yield f"{name} ({risk.what})"
                    break
                _unused.append(found)


def level_of_user() -> int:
    """Return the stack level of the user's line for a warning of the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("maskgrad."):
        frame, level = frame.f_back, level + 1
    return level


def settle(packages: Iterable[str]) -> None:
    """Do not warn about these packages: they are installed."""
    _settled.update(risk for package in packages for risk in WRONG_IN_SILENCE.get(package, ()))


def unsettle(package: str) -> None:
    """Warn about this package again when the next MaskedTensor is created."""
    _settled.difference_update(WRONG_IN_SILENCE.get(package, ()))
    _seen[0] = 0


def register_einops() -> None:
    """Define a backend of einops, which finds all subclasses of its own."""
    if _backends:
        return
    from einops import _backends as backends

    class MaskedBackend(backends.TorchBackend):  # type: ignore[misc]
        framework_name = "maskgrad"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, MaskedTensor)

    # einops keeps weak references
    _backends.append(MaskedBackend)
