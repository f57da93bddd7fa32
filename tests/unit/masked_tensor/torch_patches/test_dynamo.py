"""Dynamo's tables are completed when, and only when, Dynamo is imported."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dynamo_is_not_imported_for_it() -> None:
    run("import sys, maskgrad; assert 'torch._dynamo' not in sys.modules")


def test_the_tables_are_completed_if_dynamo_comes_later() -> None:
    run(
        "import operator, sys, torch, maskgrad\n"
        "from maskgrad.masked_tensor.torch_patches.patch import _Finder\n"
        "assert any(isinstance(f, _Finder) for f in sys.meta_path)\n"
        "from torch._dynamo.variables import builtin\n"
        "assert builtin.BUILTIN_TO_TENSOR_RFN_MAP[operator.matmul] is torch.Tensor.__rmatmul__\n"
        "assert operator.matmul in builtin.BuiltinVariable._binops()\n"
        "assert not any(isinstance(f, _Finder) for f in sys.meta_path)\n"
    )


def test_the_tables_are_completed_if_dynamo_came_before() -> None:
    run(
        "import operator, sys, torch, torch._dynamo, maskgrad\n"
        "from maskgrad.masked_tensor.torch_patches.patch import _Finder\n"
        "from torch._dynamo.variables import builtin\n"
        "for product in (operator.matmul, operator.imatmul):\n"
        "    assert builtin.BUILTIN_TO_TENSOR_RFN_MAP[product] is torch.Tensor.__rmatmul__\n"
        "assert operator.matmul in builtin.BuiltinVariable._binops()\n"
        "assert not any(isinstance(f, _Finder) for f in sys.meta_path)\n"
    )


def test_nothing_waits_for_another_module() -> None:
    """After Dynamo is imported, the list of finders is what it was before maskgrad."""
    run(
        "import sys, torch\n"
        "before = [*sys.meta_path]\n"
        "import maskgrad\n"
        "assert len(sys.meta_path) == len(before) + 1\n"
        "import torch._dynamo\n"
        "assert sys.meta_path == before\n"
    )
