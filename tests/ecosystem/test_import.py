"""Importing maskgrad changes no other package; what would be wrong without an error draws a warning."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from maskgrad.masked_tensor.other_packages import WRONG_IN_SILENCE
from tests.project_file import ROOT

#: What a program loads or uses of each package that may be wrong.
AT_RISK = {
    "accelerate": "import accelerate; accelerate.Accelerator(cpu=True)",
    "ignite": "import ignite.metrics",
    "opacus": "import opacus",
    "timm": "import timm.utils",
    "torch_geometric": "import torch_geometric.nn",
    "torchjd": "import torchjd.autojac",
    "torchmetrics": "import torchmetrics",
    "torchvision": "import torchvision.transforms.v2",
    "transformers": "from transformers import MixtralModel; import transformers.generation.utils",
}
NOT_AT_RISK = "from transformers import BertModel"
OTHERS = "import numpy, pandas, scipy, einops, safetensors.torch, polars, pyarrow, tensordict, lightning"

#: Names of other packages behind which there is code of ours.
OURS = """
import json, sys, types, warnings
import torch, maskgrad as mg
before = set(sys.modules)
{imports}
with warnings.catch_warnings(action="ignore"):
    mg.masked(torch.ones(1), torch.ones(1, dtype=bool))

def ours(value):
    while isinstance(value, types.FunctionType):
        if "/maskgrad/" in value.__code__.co_filename.replace("\\\\", "/"):
            return True
        value = value.__dict__.get("__wrapped__")

found = [str(finder) for finder in sys.meta_path if "maskgrad" in type(finder).__module__]
for name, module in list(sys.modules.items()):
    if name not in before and name.partition(".")[0] not in ("torch", "maskgrad", "tests"):
        for key, value in list(vars(module).items()):
            inner = vars(value).items() if isinstance(value, type) and value.__module__ == name else ()
            found += [f"{{name}}.{{key}}" for k, v in [(key, value), *inner] if ours(v)]
print(json.dumps(found))
"""


def run(code: str, *options: str) -> str:
    code = f"import tests.ecosystem\n{code}"  # torchvision can be imported then
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_function_of_another_package_is_ours() -> None:
    imports = "\n".join([OTHERS, *AT_RISK.values()])
    assert json.loads(run(OURS.format(imports=imports), "-W", "ignore").splitlines()[-1]) == []


@pytest.mark.parametrize("package", sorted(WRONG_IN_SILENCE))
def test_a_package_that_would_be_wrong_in_silence_is_warned_of(package: str) -> None:
    code = f"""
import warnings, torch, maskgrad as mg
def make():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mg.masked(torch.ones(1), torch.ones(1, dtype=bool))
    return [str(w.message) for w in caught if w.category is mg.errors.IntegrationWarning]
{NOT_AT_RISK if package == "transformers" else ""}
quiet = make()
{AT_RISK[package]}
first, second = make(), make()
assert len(first) == 1 and '"{package}"' in first[0] and not second and not quiet, (quiet, first, second)
mg.integrations.install()
assert not make()
"""
    run(code, "-W", "ignore")
