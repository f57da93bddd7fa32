"""accelerate: what it would do to MaskedTensors without a word; its loop is in test_random_splits.py."""

from __future__ import annotations

import accelerate.utils.operations
import pytest
import torch

import maskgrad as mg


@pytest.mark.parametrize("name", ["slice_tensors", "listify", "get_data_structure"])
def test_what_leaves_masked_tensors_alone_refuses(name: str) -> None:
    function = getattr(accelerate.utils.operations, name)
    options = (slice(0, 1),) if name == "slice_tensors" else ()
    x = mg.masked(torch.arange(6.0).view(3, 2), torch.tensor([[True], [False], [True]]))
    for data in (x, x.to_sparse(), {"x": [x]}):
        with pytest.raises(mg.UnsupportedOperationError, match=r"x\[tensor_slice\].*mg\.interop\.to_tensors"):
            function(data, *options)
    found = function(mg.interop.to_tensors({"x": x}), *options)
    if name == "slice_tensors":
        assert mg.interop.from_tensors(found)["x"].tolist() == x[:1].tolist()
