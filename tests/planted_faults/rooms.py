"""Which tests must see a fault: those of its file, and then the laws on what the file is about."""

from __future__ import annotations

from tests.planted_faults.fault import ROOT, Fault

__all__ = ["runs_for"]

_STORED = (
    "tests/unit/patterns/test_layouts.py tests/unit/semantics/test_stored_indexing.py "
    "tests/unit/semantics/test_views.py"
)
_JAGGED = "tests/unit/semantics/jagged tests/laws/storage/test_cost.py"

#: Tests of a file that has no test file of its name, or not that alone; and of a folder.
_ELSEWHERE = {
    "kernels/smallest.py": "tests/unit/kernels/test_smallest.py",
    "kernels/attention/": "tests/unit/kernels/test_attention.py",
    "kernels/normalization/": "tests/unit/kernels/test_variance.py",
    "kernels/updates/": (
        "tests/unit/kernels/test_updates.py tests/unit/optim/test_rows.py tests/unit/optim/test_optimizers.py"
    ),
    "semantics/convolutions.py": (
        "tests/unit/semantics/test_convolutions.py tests/unit/nn/test_sequence_convolution.py"
    ),
    "semantics/differentiation.py": (
        "tests/unit/semantics/test_differentiation.py tests/unit/patterns/test_layouts.py"
    ),
    "semantics/dimensions.py": "tests/unit/semantics/test_reductions.py tests/unit/semantics/test_scans.py",
    "semantics/extrema.py": "tests/unit/kernels/test_extrema.py",
    "semantics/facts.py": "tests/laws/test_coverage.py",
    "semantics/entries.py": "tests/unit/semantics/test_masked_values.py tests/unit/semantics/test_elementwise.py",
    "semantics/contractions.py": (
        "tests/unit/semantics/test_contractions.py tests/unit/semantics/test_linear_algebra.py"
    ),
    "semantics/losses/": "tests/unit/semantics/losses",
    "semantics/own_sizes.py": "tests/unit/semantics/test_convolutions.py tests/unit/nn/test_sequence_convolution.py",
    "semantics/scattering.py": "tests/unit/semantics/test_accumulation.py tests/unit/semantics/test_indexing.py",
    "semantics/stored/": _STORED,
    "semantics/jagged/": _JAGGED,
    "optim/": "tests/unit/optim",
    "optim/lazy/": "tests/unit/optim/lazy tests/unit/optim/test_optimizers.py",
    "optim/rows.py": "tests/unit/optim/test_rows.py tests/unit/optim/test_optimizers.py",
    "distributed/global_sums.py": "tests/unit/distributed/test_reductions.py tests/unit/distributed/test_losses.py",
    "patterns/": "tests/unit/patterns tests/unit/masked_tensor/test_storage.py",
}

#: What is asked next, by the beginning of the file's name.
_LAWS = {
    "semantics/stored/": "tests/laws/test_stored.py tests/laws/storage",
    "semantics/jagged/": "tests/laws/storage/test_jagged.py tests/laws/test_stored.py",
    "semantics/": "tests/laws/test_deletion.py tests/laws/test_laws.py",
    "kernels/": (
        "tests/unit/kernels/test_not_finite.py tests/unit/kernels/test_registry.py tests/laws/test_deletion.py "
        "tests/laws/storage tests/laws/test_stored.py"
    ),
    "patterns/": "tests/laws/test_stored.py",
}


def runs_for(fault: Fault) -> list[str]:
    """Arguments of pytest, one run after the other, until one of them sees the fault."""
    own = fault.tests or _of_file(fault.file)
    return [own, _by_beginning(_LAWS, fault.file)]


def _of_file(file: str) -> str:
    folder, _, name = file.removesuffix(".py").removesuffix("/__init__").rpartition("/")
    own = f"tests/unit/{folder}/test_{name}.py"
    if file not in _ELSEWHERE and (ROOT / own).exists():
        return own
    return _by_beginning(_ELSEWHERE, file)


def _by_beginning(table: dict[str, str], file: str) -> str:
    return next(
        (table[start] for start in sorted(table, key=len, reverse=True) if file.startswith(start)), ""
    )
