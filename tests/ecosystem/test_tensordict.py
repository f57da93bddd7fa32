"""tensordict: values and mask as two entries."""

from __future__ import annotations

import torch
from tensordict import NonTensorData, TensorDict, tensorclass

import maskgrad as mg
from tests.ecosystem.truth import assert_refused, garbage


def test_there_and_back() -> None:
    x, values, mask = garbage(4, 3, requires_grad=True)
    td = TensorDict(mg.interop.to_tensors({"x": x, "y": torch.arange(4)}), batch_size=[4])
    part = mg.interop.from_tensors(torch.stack([td[1], td[3]]).to("cpu"))
    assert torch.equal(part["x"].mask, mask[[1, 3]])
    torch.testing.assert_close(part["x"].filled(0.0), values[[1, 3]])
    part["x"].sum().backward()
    assert torch.equal(x._values.grad != 0, mask & torch.tensor([[False], [True], [False], [True]]))


@tensorclass
class Sample:
    """As users write it."""

    x: torch.Tensor


def test_masked_tensors_refuse() -> None:
    """Some would keep the whole of it at each index."""
    x, _, _ = garbage(4, 3)
    sample = Sample(x=torch.zeros(4, 3), batch_size=[4])
    td = TensorDict({"y": torch.zeros(4, 3)}, batch_size=[4])
    assert_refused(
        r"mg\.interop\.to_tensors\(\{'x': x\}\)",
        lambda: TensorDict({"a": {"x": x}}, batch_size=[4]),
        lambda: td.update({"x": x}),
        lambda: Sample(x=x, batch_size=[4]),
        lambda: setattr(sample, "x", x),
        lambda: NonTensorData(x),
        lambda: td.set_non_tensor("x", x),
        lambda: td.where(x > 0, td),
    )
    assert Sample(x="text", batch_size=[4])[0].x == "text"
    assert torch.equal(sample[0].x, torch.zeros(3))
