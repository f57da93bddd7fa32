"""Installation in other people's packages, of which none is needed here: modules made up for the test."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy
import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.errors import (
    IntegrationWarning,
    MissingDependencyError,
    TorchPatchWarning,
    UnsupportedOperationError,
)
from maskgrad.integrations import Integration, installing, torch_geometric
from maskgrad.integrations.installing import KNOWN, record_of
from maskgrad.integrations.integration import refusals
from maskgrad.masked_tensor import other_packages
from maskgrad.masked_tensor.other_packages import WRONG_IN_SILENCE, Risk
from maskgrad.masked_tensor.torch_patches.patch import Patch, apply, exchange, refuse

ROOT = Path(__file__).parents[3]


@pytest.fixture
def package() -> Iterator[ModuleType]:
    """`made_up.inner.count`, which another module of the package has imported by name."""
    outer, inner = ModuleType("made_up"), ModuleType("made_up.inner")
    exec("def count(x): return len(x)\nclass Box:\n    def put(self, x): return x", inner.__dict__)
    outer.inner, outer.tally = inner, inner.count  # type: ignore[attr-defined]
    sys.modules.update({"made_up": outer, "made_up.inner": inner})
    yield outer
    del sys.modules["made_up"], sys.modules["made_up.inner"]


def x() -> mg.MaskedTensor:
    return mg.masked(torch.ones(2), torch.tensor([True, False]))


def test_a_function_refuses_under_all_its_names(package: ModuleType) -> None:
    refuse("made_up.inner.count", "it counts", "Use x.num_specified().")()
    assert package.tally([1, 2]) == 2
    for function in (package.tally, package.inner.count):
        with pytest.raises(
            UnsupportedOperationError, match=r"made_up\.inner\.count .* it counts\. Use x\.num_spec"
        ):
            function(x())
        with pytest.raises(UnsupportedOperationError, match="it counts"):
            function(x={"a": [(x(),)]})


def test_a_refusal_may_wait_for_an_argument(package: ModuleType) -> None:
    exec("def step(x, state=None): return x", package.inner.__dict__)
    refuse("made_up.inner.step", "it keeps a state", "Use state=None.", only_with="state")()
    assert package.inner.step(x(), state=None).num_specified() == 1
    assert package.inner.step(1, state=2) == 1
    with pytest.raises(UnsupportedOperationError, match=r"it keeps a state\. Use state=None\."):
        package.inner.step(x(), state=2)


def test_names_of_the_original_are_those_of_its_module(package: ModuleType) -> None:
    """TorchScript, which compiles the source of the original, looks for them with the function in its place."""
    original = package.inner.count
    refuse("made_up.inner.count", "it counts", "Use x.num_specified().")()
    assert package.inner.count is not original
    assert package.inner.count.__globals__ is package.inner.__dict__


def test_a_method_is_exchanged_in_its_class(package: ModuleType) -> None:
    exchange("made_up.inner.Box.put", lambda original, self, x: original(self, x) * 2)
    assert package.inner.Box().put(2) == 4
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        exchange("nowhere.function", lambda original: original)


def test_a_package_that_is_not_as_expected_is_named(package: ModuleType) -> None:
    patch = Patch("t", "r", "w; use x", "t", {"made_up.gone": None}, lambda: None, after="made_up")
    with pytest.warns(
        TorchPatchWarning, match=r"made_up is not supported .* made_up\.gone does not exist: w; use x"
    ):
        apply([patch], "made_up")


@pytest.mark.every
@pytest.mark.parametrize("package", KNOWN)
def test_each_record_names_its_package_and_tests(package: str) -> None:
    record = record_of(package)
    assert record.package == package
    assert record.without in ("wrong in silence", "raises", "keeps an object")
    assert record.patches
    for patch in record.patches:
        assert patch.after
        assert patch.needs
        file, _, name = patch.test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_packages_to_warn_of_are_those_whose_records_say_so() -> None:
    silent = {package for package in KNOWN if record_of(package).without == "wrong in silence"}
    assert silent == other_packages.WRONG_IN_SILENCE.keys()


@pytest.fixture
def known(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Integration:
    """`made_up` as a known package that is wrong in silence, with a test of the warning in a fresh state."""
    patches = tuple(refusals("inner:count", "it counts", "Use x.num_specified().", "test", "made_up."))
    record = Integration("made_up", "wrong in silence", patches)
    file = ModuleType("maskgrad.integrations.made_up")
    file.INTEGRATION = record  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "maskgrad.integrations.made_up", file)
    monkeypatch.setattr(installing, "KNOWN", (*KNOWN, "made_up"))
    monkeypatch.setattr(
        other_packages, "WRONG_IN_SILENCE", {"made_up": (Risk(r"made_up\.inner", "it counts"),)}
    )
    monkeypatch.setattr(other_packages, "_settled", set())
    monkeypatch.setattr(other_packages, "_seen", [0])
    return record


def test_installation_is_idempotent_and_can_be_undone(
    package: ModuleType, known: Integration, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = package.inner.count
    program = ModuleType("program")  # of the user, who has imported it by name
    program.count = original  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "program", program)
    assert mg.integrations.install("made_up") == (known,)
    assert program.count is package.inner.count
    assert known.is_installed
    assert known in mg.integrations.install()  # without names: what is loaded
    adapted = package.inner.count
    assert mg.integrations.install("made_up") == (known,)
    assert package.inner.count is adapted is package.tally
    package.later = package.inner.count  # a module that is imported later takes the name from there
    with pytest.raises(UnsupportedOperationError, match="it counts"):
        package.later(x())
    mg.integrations.uninstall("made_up")
    assert not known.is_installed
    assert package.inner.count is package.tally is package.later is program.count is original


def test_an_unknown_package_is_refused_with_the_known_ones(known: Integration) -> None:
    with pytest.raises(ValueError, match=r"must be one of accelerate, einops, .*made_up, found 'made_upp'"):
        mg.integrations.install("made_up", "made_upp")
    assert not known.is_installed


def test_a_package_that_is_absent_is_refused(monkeypatch: pytest.MonkeyPatch, known: Integration) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    monkeypatch.delitem(sys.modules, "torchjd")
    if importlib.util.find_spec("torchjd") is not None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"install\('torchjd'\) needs the package 'torchjd'"):
        mg.integrations.install("made_up", "torchjd")
    assert not known.is_installed


VALUES = torch.tensor([[1.0, 2.0]])
MADE: list[Callable[[], mg.MaskedTensor]] = [
    x,
    lambda: mg.from_nan(VALUES),
    lambda: mg.from_lengths(VALUES, torch.tensor([1])),
    lambda: mg.from_sparse(VALUES.to_sparse()),
    lambda: mg.from_numpy(numpy.ma.masked_invalid([1.0])),
]


@pytest.mark.parametrize("make", MADE)
def test_a_loaded_package_draws_one_warning(known: Integration, make: Callable[[], object]) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make()
        make()
    assert [warning.category for warning in found] == [IntegrationWarning]
    assert re.search(
        r'made_up\.inner \(it counts\) may .* mg\.integrations\.install\("made_up"\)', str(found[0].message)
    )
    assert found[0].filename == __file__


def _warned(*, after: Callable[[], object] = lambda: None) -> list[str]:
    """Messages when a MaskedTensor is made, and then once more."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", IntegrationWarning)
        x()
        after()
        x()
        x()
    return [str(warning.message) for warning in found if warning.category is IntegrationWarning]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Load modules made up for the test in place of all of the known packages that are loaded."""
    monkeypatch.setattr(other_packages, "_settled", set())
    monkeypatch.setattr(other_packages, "_unused", [])
    monkeypatch.setattr(other_packages, "_seen", [0])
    for name in [name for name in sys.modules if name.partition(".")[0] in WRONG_IN_SILENCE]:
        monkeypatch.delitem(sys.modules, name)

    def loaded(name: str, **contents: object) -> ModuleType:
        for end in [part.start() for part in re.finditer(r"\.|$", name)]:
            monkeypatch.setitem(sys.modules, name[:end], ModuleType(name[:end]))
        vars(sys.modules[name]).update(contents)
        return sys.modules[name]

    return loaded


#: A module of each risk, by package, in the order of the table.
RISKY: dict[str, list[tuple[str, dict[str, object]]]] = {
    "accelerate": [("accelerate.state", {"PartialState": SimpleNamespace(_shared_state={"device": "cpu"})})],
    "ignite": [("ignite.metrics.metric", {})],
    "opacus": [("opacus.grad_sample.grad_sample_module", {})],
    "timm": [("timm.utils.metrics", {})],
    "torch_geometric": [("torch_geometric.utils._scatter", {})],
    "torchjd": [("torchjd.autojac", {})],
    "torchmetrics": [("torchmetrics.metric", {})],
    "torchvision": [("torchvision.transforms.v2", {})],
    "transformers": [
        ("transformers.models.mixtral.modeling_mixtral", {"load_balancing_loss_func": len}),
        ("transformers.models.llama.modeling_llama", {"LlamaForCausalLM": object}),
        ("transformers.data.data_collator", {}),
    ],
}


CASES = [(package, i) for package, risks in RISKY.items() for i in range(len(risks))]


@pytest.mark.parametrize(("package", "number"), CASES)
def test_a_package_is_named_once_when_what_may_be_wrong_is_loaded(
    package: str, number: int, load: Callable[..., ModuleType]
) -> None:
    load(package)
    assert _warned() == []
    module, contents = RISKY[package][number]
    (message,) = _warned(after=lambda: load(module, **contents))
    what = WRONG_IN_SILENCE[package][number].what
    assert message.startswith(f"{module} ({what}) may give wrong results")
    assert f'mg.integrations.install("{package}")' in message


def test_the_table_has_every_risk() -> None:
    found = {name: len(risks) for name, risks in RISKY.items()}
    assert found == {name: len(risks) for name, risks in WRONG_IN_SILENCE.items()}


@pytest.mark.parametrize(
    ("module", "content"),
    [
        ("transformers.models.bert.modeling_bert", "BertForMaskedLM"),
        ("transformers.models.auto.modeling_auto", "AutoModelForCausalLM"),
        ("transformers.modeling_utils", "PreTrainedModel"),
    ],
)
def test_models_without_experts_that_do_not_generate_draw_no_warning(
    module: str, content: str, load: Callable[..., ModuleType]
) -> None:
    load(module, **{content: object})
    assert _warned() == []


def test_an_accelerator_made_later_draws_a_warning(load: Callable[..., ModuleType]) -> None:
    shared: dict[str, str] = {}
    load("accelerate.state", PartialState=SimpleNamespace(_shared_state=shared))
    (message,) = _warned(after=lambda: shared.update(device="cpu"))  # no module is imported then
    assert message.startswith("accelerate.state (an Accelerator ")


def test_an_installed_package_draws_none(known: Integration) -> None:
    mg.integrations.install("made_up")
    x()
    mg.integrations.uninstall("made_up")
    with pytest.warns(IntegrationWarning):
        x()


def test_the_backend_of_einops(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a made-up einops: what it looks for is a class derived from its own, with a module that is loaded."""
    monkeypatch.setattr(other_packages, "_backends", [])
    backends = ModuleType("einops._backends")

    class TorchBackend:
        framework_name = "torch"

    backends.TorchBackend = TorchBackend  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in ("einops", "einops._backends")}
    sys.modules.update({"einops": ModuleType("einops"), "einops._backends": backends})
    sys.modules["einops"]._backends = backends  # type: ignore[attr-defined]
    try:
        other_packages.register_einops()
        (found,) = TorchBackend.__subclasses__()
        assert found.framework_name in sys.modules
        assert found().is_appropriate_type(x())
        assert not found().is_appropriate_type(torch.ones(1))
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def scatter(src: Tensor, index: Tensor, dim: int = 0, dim_size: int = 0, reduce: str = "sum") -> Tensor:
    """What torch_geometric's means, on vectors."""
    assert dim == 0
    result = src.new_zeros(dim_size)
    return result.scatter_reduce(0, index, src, {"max": "amax"}.get(reduce, reduce), include_self=False)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_scatter_deletes(reduce: str) -> None:
    """Into three groups, of which the second never has a row and the third loses all it has in one column."""
    over = partial(torch_geometric._scatter, scatter)
    data = torch.tensor(
        [[1.0, torch.nan], [3.0, 5.0], [torch.nan, 7.0], [torch.inf, 9.0]], requires_grad=True
    )
    mask = torch.tensor([[True, False], [True, True], [False, True], [False, True]])
    index = torch.tensor([0, 0, 2, 2])
    found = over(mg.masked(data, mask), index, 0, None, reduce)
    first = {"sum": 4.0, "mean": 2.0, "max": 3.0}[reduce]
    last = {"sum": 16.0, "mean": 8.0, "max": 9.0}[reduce]
    assert found.tolist() == [[first, 5.0], [0.0, 0.0], [None, last]]
    found.sum().backward()
    assert data.grad is not None
    assert not data.grad[~mask].any()
    across = over(mg.masked(data.T, mask.T), mg.masked(index, torch.ones(4, dtype=torch.bool)), -1, 3, reduce)
    assert across.T.tolist() == found.tolist()
    assert over(torch.ones(2), torch.tensor([0, 0]), 0, 1).tolist() == [2.0]
