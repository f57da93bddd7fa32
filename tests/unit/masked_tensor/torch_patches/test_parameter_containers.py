"""ParameterList and ParameterDict: MaskedTensors are refused, all else is as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.poison import poisoned


def test_masked_tensors_are_refused_and_the_rest_is_kept() -> None:
    names, parts = nn.ParameterDict({"a": torch.ones(2)}), nn.ParameterList([torch.ones(2), "text"])
    for container in (parts, names):
        with pytest.raises(TypeError, match=r"cannot be a torch\.nn\.Parameter"):
            container[0 if container is parts else "b"] = poisoned([1.0, None])
    assert isinstance(parts[0], nn.Parameter)
    assert parts[1] == "text"
    assert list(names) == ["a"]
    with pytest.raises(TypeError, match=r"cannot be a torch\.nn\.Parameter"):
        parts.append(poisoned([1.0]))
    assert len(list(parts.parameters())) == 1
