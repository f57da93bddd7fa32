"""Names that were removed, that other libraries have, or misspelt: the error says what to write, and that runs."""

from __future__ import annotations

import importlib
import re
import traceback
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import maskgrad as mg
from maskgrad.instead import INSTEAD
from tests.poison import nan, on, poisoned

SCOPE = {
    "mg": mg,
    "torch": torch,
    "data": torch.tensor([[1.0, nan], [3.0, 4.0]]),
    "mask": on([1, 0], [1, 1]),
    "sequences": [torch.tensor([1.0, 2.0]), torch.tensor([3.0])],
    "lengths": torch.tensor([1, 2]),
    "w": torch.tensor([[1.0, 1.0], [2.0, 1.0]]),
}


def meant(error: BaseException) -> list[str]:
    """The expressions that a message offers."""
    text = re.search(r"did you mean (.*)\?$", str(error))
    assert text is not None, error
    return [re.sub(r" for .*", "", part) for part in re.split(r", (?:or )?(?=mg\.|x[.\[]|\()", text[1])]


def run(line: str, **scope: Any) -> Any:
    return eval(line, {**SCOPE, "x": poisoned([[1.0, None], [3.0, 4.0]], dtype=torch.float32), **scope})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fillna", [[1.0, 0.0], [3.0, 4.0]]),
        ("fill_null", [[1.0, 0.0], [3.0, 4.0]]),
        ("isna", [[False, True], [False, False]]),
        ("notna", [[True, False], [True, True]]),
        ("dropna", [[3.0, 4.0]]),
        ("count", [2, 1]),
        ("average", 8 / 3),
        ("astype", [[1.0, None], [3.0, 4.0]]),
        ("copy", [[1.0, None], [3.0, 4.0]]),
        ("to_list", [[1.0, None], [3.0, 4.0]]),
        ("masked_mean", 8 / 3),
        ("masked_sum", 8.0),
    ],
)
def test_an_attribute_of_another_library_names_ours(name: str, expected: Any) -> None:
    with pytest.raises(
        AttributeError, match=f"MaskedTensor has no attribute '{name}'; did you mean"
    ) as caught:
        getattr(run("x"), name)
    found = run(meant(caught.value)[0])
    found = found.tolist() if hasattr(found, "tolist") else found
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("name", INSTEAD["attributes"])
def test_every_line_offered_for_an_attribute_runs(name: str) -> None:
    assert not hasattr(run("x"), name)
    with pytest.raises(AttributeError) as caught:
        getattr(run("x"), name)
    for line in meant(caught.value):
        whole = mg.from_lengths(torch.ones(2, 2), torch.tensor([2, 1]))
        assert run(line, x=whole if "nested" in line else run("x")) is not None


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("masked_mean", 8 / 3),
        ("mean", 8 / 3),
        ("nanmean", 8 / 3),
        ("masked_sum", 8.0),
        ("from_mask", [[1.0, None], [3.0, 4.0]]),
        ("as_masked_tensor", [[1.0, None], [3.0, 4.0]]),
        ("pad_sequence", [[1.0, 2.0], [3.0, None]]),
        ("masked_invalid", [[1.0, None], [3.0, 4.0]]),
        ("from_padded", None),
    ],
)
def test_a_function_that_mg_does_not_have_names_one_that_it_has(name: str, result: Any) -> None:
    assert not hasattr(mg, name)
    with pytest.raises(
        AttributeError, match=f"module 'maskgrad' has no attribute '{name}'; did you mean"
    ) as caught:
        getattr(mg, name)
    if result is not None:
        for line in meant(caught.value):
            found = run(line).tolist()
            assert found == (pytest.approx(result) if isinstance(result, float) else result)


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("Adam", "mg.optim.Adam"),
        ("Embedding", "mg.nn.Embedding"),
        ("GradScaler", "mg.amp.GradScaler"),
        ("to_pandas", "mg.interop.to_pandas"),
        ("masked_mse_loss", "torch.nn.functional.mse_loss"),
        ("fromnan", "mg.from_nan"),
        ("from_length", "mg.from_lengths"),
        ("clip_grad_norm", "mg.clip_grad_norm_"),
    ],
)
def test_a_name_of_a_module_and_a_misspelt_one(name: str, home: str) -> None:
    with pytest.raises(AttributeError, match="did you mean") as caught:
        getattr(mg, name)
    assert callable(eval(home, {"mg": mg, "torch": torch}))
    assert meant(caught.value)[0].startswith(home)


def test_every_function_that_is_named_exists() -> None:
    for line in INSTEAD["names"].values():
        assert callable(eval(line.partition("(")[0], {"mg": mg}))


@pytest.mark.parametrize("name", ["no_such_thing", "__no_such_protocol__", "_private"])
def test_of_an_unknown_name_nothing_is_said(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'maskgrad' has no attribute '{name}'$"):
        getattr(mg, name)


def test_a_misspelt_attribute_is_left_to_python_which_knows_those_of_the_object() -> None:
    with pytest.raises(AttributeError, match=r"MaskedTensor has no attribute 'lenghts'$") as caught:
        run("x").lenghts
    assert caught.value.name == "lenghts"
    assert isinstance(caught.value.obj, mg.MaskedTensor)
    assert "lenghts" in "".join(traceback.format_exception(caught.value))


def test_the_package_with_the_name_of_a_function_of_torch() -> None:
    with pytest.raises(TypeError, match=r"mg.masked_tensor is a package; write mg.masked\(data, mask\)$"):
        mg.masked_tensor(torch.ones(2), on(1, 0))  # type: ignore[operator]
    assert run("mg.masked(data, mask)").tolist() == [[1.0, None], [3.0, 4.0]]


@pytest.mark.parametrize(
    "statement",
    [
        lambda x: 1 if x > 0 else 0,
        lambda x: x > 0 and x < 2,
        lambda x: not x,
        max,
        sorted,
        lambda x: bool(mg.from_lengths(x.filled(0.0), torch.tensor([2, 1]), layout=torch.jagged)),
    ],
)
def test_the_truth_of_several_entries_is_ambiguous(statement: Any) -> None:
    x = poisoned([[1.0, None], [3.0, 4.0]])
    words = r"\(x > 0\).any\(\) or \(x > 0\).all\(\), x & y, x.amax\(\), x.sort\(\)$"
    with pytest.raises(RuntimeError, match=words) as caught:
        statement(x)
    assert "item" not in str(caught.value)
    assert bool((x > 0).any())
    assert bool((x > 0).all())
    assert x.amax().item() == 4.0
    assert ((x > 0) & (x < 2)).tolist() == [[True, None], [False, False]]


@pytest.mark.parametrize(("conversion", "name"), [(float, "float"), (int, "int"), (complex, "complex")])
def test_a_conversion_to_a_number_is_called_by_its_name(conversion: Any, name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{name}\(\) needs one entry, .* has 2; write x.tolist\(\)"):
        conversion(poisoned([1.0, None]))
    with pytest.raises(mg.UnspecifiedValueError, match=rf"^{name}\(\) needs a specified entry"):
        conversion(poisoned([None]))
    assert conversion(poisoned([3.0])) == 3
    with pytest.raises(mg.UnspecifiedValueError, match=r"^bool\(\) needs a specified entry"):
        bool(poisoned([None]))


@pytest.mark.parametrize("read", [torch.tensor, torch.as_tensor, torch.asarray, from_dlpack])
def test_readers_of_dlpack_are_called_by_their_names(read: Any) -> None:
    x = poisoned([1.0, None])
    with pytest.raises(
        mg.UndefinedOnMaskedError, match=r"^torch.tensor\(x\), .*Write x.clone\(\).*x.filled"
    ) as caught:
        read(x)
    assert "__" not in str(caught.value)
    assert x.clone().tolist() == [1.0, None]


MODEL = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    "call",
    [
        mg.GradientAccumulator,
        mg.grad_norm,
        lambda p: mg.clip_grad_norm_(p, 1.0),
        lambda p: mg.clip_grad_value_(p, 1.0),
        mg.optim.Adam,
        lambda p: mg.optim.SGD(p, lr=0.1),
    ],
)
@pytest.mark.parametrize(
    "given", [3, None, torch.optim.SGD(MODEL.parameters(), lr=0.1)], ids=["int", "None", "SGD"]
)
def test_what_is_no_parameter_is_named_with_the_line_to_write(call: Any, given: Any) -> None:
    kind = type(given).__name__
    with pytest.raises(TypeError, match=rf"param.* must be .*found {kind}; write .*model.parameters\(\)"):
        call(given)
    call(MODEL.parameters())


@pytest.mark.parametrize(
    ("given", "found", "result"),
    [
        ([3, 4], "int at 0", [[3, 4]]),
        ([[1.0, 2.0], [3.0]], "list at 0", [[1.0, 2.0], [3.0, None]]),
        ([np.ones(2), np.ones(1)], "ndarray at 0", [[1.0, 1.0], [1.0, None]]),
        ([np.ma.array([1.0, 2.0], mask=[False, True])], "MaskedArray at 0", [[1.0]]),
        ([mg.masked(torch.tensor([1.0, 2.0]), on(1, 0))], "MaskedTensor at 0", [[1.0]]),
        ([torch.tensor([1.0]), None], "NoneType at 1", [[1.0]]),
        ([torch.tensor(1.0), torch.tensor(2.0)], "a 0-d tensor at 0", [[1.0, 2.0]]),
        (3, "int", [[1.0, 2.0], [3.0, None]]),
        ("ab", "str", [[1.0, 2.0], [3.0, None]]),
        ({"a": torch.ones(2)}, "dict", [[1.0, 2.0], [3.0, None]]),
    ],
)
def test_what_is_no_list_of_sequences(given: Any, found: str, result: Any) -> None:
    with pytest.raises(TypeError, match=f"found {found}; write mg.from_sequences") as caught:
        mg.from_sequences(given)
    line = str(caught.value).partition("; write ")[2].partition(" for one")[0]
    assert eval(line, {"mg": mg, "torch": torch, "sequences": given}).tolist() == result


def test_a_vector_is_one_sequence() -> None:
    with pytest.raises(TypeError, match=r"found a 1-d tensor; write mg.from_sequences\(\[sequence\]\)$"):
        mg.from_sequences(torch.ones(2))
    assert mg.from_sequences([torch.ones(2)]).tolist() == [[1.0, 1.0]]


REMOVED = {module: names for module, names in INSTEAD.items() if module.startswith("maskgrad")}


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in REMOVED.items() for n in names])
def test_a_removed_name_says_what_to_write(module: str, name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"no attribute '{name}': it was removed in version 0\.4; "
    ) as caught:
        getattr(importlib.import_module(module), name)
    assert str(caught.value).endswith(REMOVED[module][name])
    assert not hasattr(importlib.import_module(module), name)


def test_a_name_that_never_was_is_unknown() -> None:
    with pytest.raises(AttributeError, match=r"module 'maskgrad\.distributed' has no attribute 'nosuch'$"):
        importlib.import_module("maskgrad.distributed").nosuch
