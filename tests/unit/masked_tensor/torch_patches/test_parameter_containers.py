"""Parameter, ParameterList and ParameterDict: MaskedTensors are refused, all else is as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.poison import poisoned

CONTAINERS = {
    "Parameter": (nn.Parameter, r"nn\.Parameter\(x\.filled\(0\.\)\) and self\.register_buffer\('mask', x\.mask\)"),
    "Buffer": (nn.Buffer, r"self\.register_buffer\(name, x\)"),
    "ParameterList": (lambda x: nn.ParameterList([x]), r"nn\.Parameter\(x\.filled"),
    "ParameterDict": (lambda x: nn.ParameterDict({"a": x}), r"nn\.Parameter\(x\.filled"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_masked_tensor_is_no_parameter(name: str) -> None:
    make, words = CONTAINERS[name]
    for x in (poisoned([1.0, None]), poisoned([1.0, None]).to_sparse()):
        assert not hasattr(x, "_is_param")
        assert not hasattr(x, "persistent")
        with pytest.raises(TypeError, match=words):
            make(x)


def test_masked_tensors_are_refused_and_the_rest_is_kept() -> None:
    parts = nn.ParameterList([torch.ones(2), "text"])
    for add in (parts.append, lambda x: parts.__setitem__(0, x)):
        with pytest.raises(TypeError, match=r"cannot be a torch\.nn\.Parameter"):
            add(poisoned([1.0, None]))
    assert isinstance(parts[0], nn.Parameter)
    assert parts[1] == "text"
