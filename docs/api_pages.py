"""Writes one page per public module and an index with one line per name in its ``__all__``: neither can go stale."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

# In the order of the table of contents. A module that does not exist yet is left out.
PUBLIC_MODULES = [
    "maskgrad",
    "maskgrad.functional",
    "maskgrad.sparse",
    "maskgrad.optim",
    "maskgrad.optim.functional",
    "maskgrad.nn",
    "maskgrad.nn.functional",
    "maskgrad.amp",
    "maskgrad.distributed",
    "maskgrad.interop",
    "maskgrad.metrics",
    "maskgrad.integrations",
    "maskgrad.doctor",
    "maskgrad.testing",
    "maskgrad.export.onnx",
    "maskgrad.plot",
    "maskgrad.errors",
]

# The names of `maskgrad` itself, as the index and its page show them; modules and errors have places of their own.
GROUPS = {
    "Make masked tensors": [
        "masked", "from_nan", "from_lengths", "from_sequences", "from_offsets", "from_pandas",
        "from_arrow", "from_numpy", "from_scipy", "from_sparse", "from_nested", "from_torch_masked",
    ],
    "Masked tensors": ["MaskedTensor", "unspecified", "align", "ranks"],
    "Packed documents": ["unpack_documents", "pack_documents", "aggregate", "block_mask"],
    "Accumulate, clip and penalise gradients": [
        "GradientAccumulator", "coupled_backward", "clip_grad_norm_", "clip_grad_value_", "grad_norm",
        "gradient_penalty",
    ],
    "Gradients of each sample": [
        "per_sample_grad", "per_sample_grad_norms", "clipped_backward", "batched_grad", "batched_hessian",
    ],
    "Change and check gradients": [
        "mask_gradient", "reverse_gradient", "Function", "gradcheck", "gradgradcheck",
    ],
    "What an optimizer sees": ["train_only", "attach_gradient"],
    "Compilers and kernels": ["assert_no_recompile", "count_recompiles", "kernels_in_use", "use_kernels"],
}  # fmt: skip


def write_api_pages(folder: Path) -> None:
    """Write the pages and their index into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.rst"):
        stale.unlink()
    modules = [importlib.import_module(name) for name in PUBLIC_MODULES if _exists(name)]
    for module in modules:
        (folder / f"{module.__name__}.rst").write_text(_page(module), encoding="utf-8")
    (folder / "index.rst").write_text(_index(modules), encoding="utf-8")


def _index(modules: list[ModuleType]) -> str:
    """Every public name and its first sentence, in groups."""
    contents = "".join(f"   {module.__name__}\n" for module in modules)
    parts = [_title("Reference"), f".. toctree::\n   :hidden:\n\n{contents}\n"]
    for title, names in names_in_groups(modules[0]).items():
        parts += [_title(title, "-"), _summaries(modules[0], names)]
    for module in modules[1:]:
        names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
        parts += [
            _title(module.__name__, "-"),
            f"{_first_sentence(module)} :doc:`The whole page <{module.__name__}>`.\n\n",
        ]
        parts += [_summaries(module, names)]
    return "".join(parts)


def names_in_groups(root: ModuleType) -> dict[str, list[str]]:
    """`GROUPS`, once it is known that they have every name of the first floor."""
    grouped = [name for names in GROUPS.values() for name in names]
    listed = {
        name
        for name in root.__all__
        if not inspect.ismodule(value := getattr(root, name))
        and not (inspect.isclass(value) and issubclass(value, Exception))
    }
    if set(grouped) != listed or len(grouped) != len(listed):
        raise ValueError(f"docs/api_pages.py: GROUPS and maskgrad.__all__ differ in {set(grouped) ^ listed}")
    return GROUPS


def _summaries(module: ModuleType, names: list[str]) -> str:
    rows = "".join(
        f"   * - :py:obj:`~{_home(module, name)}`\n     - {_first_sentence(getattr(module, name))}\n"
        for name in names
    )
    return f".. py:currentmodule:: {module.__name__}\n\n.. list-table::\n   :widths: 1 3\n   :width: 100%\n\n{rows}\n"


def _home(module: ModuleType, name: str) -> str:
    """Where the entry for a name is: its module's page, if that is a public one further down."""
    path = getattr(getattr(module, name), "__module__", "")
    below = module.__name__ == "maskgrad" and path in PUBLIC_MODULES[1:]
    return f"{path if below else module.__name__}.{name}"


def _first_sentence(value: object) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _exists(name: str) -> bool:
    parent = name.rpartition(".")[0]
    return (not parent or _exists(parent)) and importlib.util.find_spec(name) is not None


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _page(module: ModuleType) -> str:
    head = f"{_title(module.__name__)}.. automodule:: {module.__name__}\n\n"
    if module.__name__ != "maskgrad":
        return head + "".join(_entry(module, name) for name in module.__all__)
    groups = names_in_groups(module)
    errors = [
        name
        for name in module.__all__
        if inspect.isclass(getattr(module, name)) and _home(module, name) != f"maskgrad.{name}"
    ]
    parts = [
        _title(title, "-") + "".join(_entry(module, name) for name in names)
        for title, names in groups.items()
    ]
    return head + "".join(parts) + _title("Errors", "-") + "".join(_entry(module, name) for name in errors)


def _entry(module: ModuleType, name: str) -> str:
    """The directive for one public name; modules have pages of their own."""
    value = getattr(module, name)
    path = f"{module.__name__}.{name}"
    if inspect.ismodule(value):
        return ""
    # A name that is documented on the page of a module further down is only mentioned here.
    if module.__name__ == "maskgrad" and getattr(value, "__module__", "") in PUBLIC_MODULES[1:]:
        role = "exc" if inspect.isclass(value) and issubclass(value, Exception) else "obj"
        return f":py:{role}:`{value.__module__}.{name}`\n\n"
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return f".. {kind}:: {path}\n   :members:\n   :show-inheritance:\n\n"
    if callable(value):
        return f".. autofunction:: {path}\n\n"
    return f".. autodata:: {path}\n   :no-value:\n\n" if not name.startswith("__") else ""
