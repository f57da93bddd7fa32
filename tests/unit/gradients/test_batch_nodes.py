"""Names of outputs and inputs, and the pattern that both sides give to a derivative."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from maskgrad.gradients.batch_nodes import Node, input_nodes, outer, output_nodes, require_batch
from tests.poison import nan, on


def test_leaves_have_the_names_that_a_user_would_write() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    masked = mg.masked(x, on([1, 0, 1], [0, 0, 1]))
    nodes, _ = input_nodes((x, {"a": [masked]}))
    assert [node.name for node in nodes] == ["inputs[0]", "inputs[1]['a'][0]"]
    assert nodes[0].mask is None
    assert nodes[1].mask is not None
    assert output_nodes(x**2)[0][0].name == "outputs"


def test_garbage_under_an_output_is_gone() -> None:
    values = torch.tensor([[1.0, nan]], requires_grad=True)
    ((node,), _) = output_nodes(mg.masked(values, on([1, 0])))
    assert node.plain.tolist() == [[1.0, 0.0]]
    with torch.no_grad():
        ((node,), _) = output_nodes(mg.masked(values, on([1, 0])))
    assert node.plain.requires_grad


@pytest.mark.parametrize("known_out", [None, on([1, 0], [0, 1])])
@pytest.mark.parametrize("known_in", [None, on([1, 0, 1], [0, 1, 1])])
def test_an_entry_is_specified_if_both_sides_are(
    known_out: torch.Tensor | None, known_in: torch.Tensor | None
) -> None:
    output = Node("y", torch.ones(2, 2), torch.Size((2, 2)), known_out)
    given = Node("x", torch.ones(2, 3), torch.Size((2, 3)), known_in)
    values = torch.full((2, 2, 3), nan)
    found = outer(values, output, given)
    if known_out is None and known_in is None:
        assert found is values
        return
    assert isinstance(found, mg.MaskedTensor)
    for b in range(2):
        for o in range(2):
            for i in range(3):
                expected = (known_out is None or known_out[b, o]) and (known_in is None or known_in[b, i])
                assert bool(found.mask[b, o, i]) == bool(expected)
    assert not found._values[~found.mask].any()


def test_the_number_of_samples() -> None:
    output = Node("outputs", torch.ones(2, 3), torch.Size((2, 3)), None)
    same = Node("inputs", torch.ones(2), torch.Size((2,)), None)
    assert require_batch(output, [same]) == 2
    for shape in ((), (3,)):
        other = Node("inputs['w']", torch.ones(shape), torch.Size(shape), None)
        with pytest.raises(ValueError, match=r"inputs\['w'\] must have shape .*mg.per_sample_grad"):
            require_batch(output, [same, other])
