"""The table of what is patched inside PyTorch: complete, true, and looked at before anything is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch.distributed.fsdp._fully_shard._fsdp_state

import maskgrad as mg
from maskgrad.errors import TorchPatchWarning
from maskgrad.masked_tensor.torch_patches import table
from maskgrad.masked_tensor.torch_patches.patch import HOLDS, WAITS, Patch, look_for
from maskgrad.masked_tensor.torch_patches.table import PATCHES

ROOT = Path(__file__).parents[4]
IDS = [patch.target for patch in PATCHES]


@pytest.mark.parametrize("patch", PATCHES, ids=IDS)
def test_the_patch_holds_and_says_what_to_do_without_it(patch: Patch) -> None:
    assert IDS.count(patch.target) == 1
    assert patch.state == HOLDS
    for said in (patch.reason, patch.without, patch.needs):
        assert said
    file, _, name = patch.test.partition("::")
    assert f"def {name.rpartition('::')[2]}" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "arguments", "words"),
    [
        ("torch.nn.Module.none_such", [], "torch.nn.Module.none_such does not exist"),
        ("torch.none_such.deeper", [], "torch.none_such.deeper does not exist"),
        ("torch.nn.functional.relu", ["x"], "torch.nn.functional.relu takes (input, inplace), not (x)"),
        ("torch.nn.functional.relu", ["input"], ""),
        ("torch._C._get_tracing_state", ["x"], "torch._C._get_tracing_state has no signature"),
    ],
)
def test_looking_for_a_path_in_words(path: str, arguments: list[str], words: str) -> None:
    assert look_for(path, *arguments) == words


def patch_that_needs(path: str, touched: list[str]) -> Patch:
    return Patch("torch.x", "r", "w", "t", {path: None}, lambda: touched.append("x"))


def test_a_patch_is_applied_once_and_touches_nothing_unless_all_is_there() -> None:
    touched: list[str] = []
    absent, present = patch_that_needs("torch.none_such", touched), patch_that_needs("torch.relu", touched)
    assert absent.state == WAITS
    absent.apply()
    assert absent.is_off
    assert absent.state == "torch.none_such does not exist"
    assert not touched
    present.apply()
    present.apply()
    assert (present.state, touched) == (HOLDS, ["x"])
    # the import of a module of PyTorch installs it, and must succeed
    broken = Patch("torch.x", "r", "w", "t", {}, lambda: dict[str, None]()["gone"])
    broken.apply()
    assert broken.is_off
    assert broken.state == "torch.x has changed (KeyError: 'gone')"


def test_one_warning_for_all_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = (patch_that_needs("torch.none_such", []), patch_that_needs("torch.no_other", []))
    monkeypatch.setattr(table, "PATCHES", patches)
    with pytest.warns(
        TorchPatchWarning, match=r"torch.none_such does not exist: w; torch.no_other does not exist: w"
    ) as w:
        table.apply_all()
    assert len(w) == 1


#: Every third path is taken away before maskgrad is imported.
ABSENT = """
import pkgutil, warnings
import torch, torch._dynamo, torch.utils.data, torch._functorch.vmap, torch._functorch.eager_transforms
import torch.nn.attention.flex_attention, torch.distributed.fsdp._fully_shard._fsdp_state
from torch._dynamo.variables import builtin, misc, torch_function, user_defined, lists, constant, tensor

for path in {paths!r}:
    owner, _, name = path.rpartition(".")
    setattr(pkgutil.resolve_name(owner), name, None)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import maskgrad as mg
from maskgrad.masked_tensor.torch_patches.table import PATCHES
for patch in PATCHES:
    assert patch.is_off == any((need + ".").startswith({dotted!r}) for need in patch.needs), patch
    assert not patch.is_off or any(patch.state in str(w.message) for w in caught), patch
x = mg.masked(torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([True, False, True]))
assert (x * 2).sum().item() == 8.0
"""


@pytest.mark.processes
@pytest.mark.parametrize("first", range(3))
def test_whatever_is_absent_the_import_succeeds_and_says_so(first: int) -> None:
    paths = sorted({path for patch in PATCHES for path in patch.needs}, reverse=True)[first::3]
    run(ABSENT.format(paths=paths, dotted=tuple(f"{path}." for path in paths)))


def test_a_function_apply_that_is_written_in_c() -> None:
    """The fault of 0.1.0: since 2.14 there is no ``__func__`` to be found."""
    done = run(
        "import torch\n"
        "torch.autograd.Function.apply = torch._C._FunctionBase.__dict__['apply']\n"
        "import maskgrad as mg\n"
        "class Twice(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, g): return g * 2\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "Twice.apply(x).sum().backward()\n"
        "assert x.grad.tolist() == [2.0, 2.0]\n"
        "try: Twice.apply(mg.masked(x, torch.tensor([True, False])))\n"
        "except mg.UnsupportedOperationError as error: print(error)\n"
    )
    assert "derive Twice from mg.Function" in done


def test_without_what_dynamo_must_be_told_nothing_is_traced() -> None:
    """Graphs break at MaskedTensors: the result is right, and one whole graph is refused."""
    done = run(
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch\n"
        "from torch._dynamo.variables import torch_function\n"
        "import maskgrad as mg\n"
        "from maskgrad.masked_tensor.torch_patches import dynamo\n"
        "dynamo.do_not_trace('maskgrad does not know this Dynamo')\n"
        "x = mg.masked(torch.tensor([[1.0, 2.0], [3.0, float('nan')]]), torch.tensor([[1, 1], [1, 0]]).bool())\n"
        "t = torch.tensor([[1.0, 2.0], [5.0, 7.0]])\n"
        "function = lambda x, t: (t @ x).filled(-1.0) + 1\n"
        "assert torch.equal(torch.compile(function, backend='eager')(x, t), function(x, t))\n"
        "other = lambda x, t: (t @ x).filled(-1.0) + 1\n"
        "try: torch.compile(other, backend='eager', fullgraph=True)(x, t)\n"
        "except torch._dynamo.exc.Unsupported as error: print(error)\n"
    )
    assert "maskgrad does not know this Dynamo" in done


def test_assert_close_is_refused_with_what_to_compare() -> None:
    x = mg.masked(torch.ones(2), torch.tensor([True, False]))
    for pair in ((x, x), ({"x": [x]}, {"x": [x]}), (x, torch.ones(2))):
        with pytest.raises(mg.UnsupportedOperationError, match=r"x\.mask, then the values, x\.filled\(0\.\)"):
            torch.testing.assert_close(*pair)
    torch.testing.assert_close({"x": [torch.ones(2)]}, {"x": [torch.ones(2)]})


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout
