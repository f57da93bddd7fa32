"""``flex_attention`` of MaskedTensors, beside ``scaled_dot_product_attention`` and each document alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import flex_attention as module

import maskgrad as mg
from maskgrad.documents import flex_attention as rules
from tests.poison import assert_entries
from tests.unit.documents.rows import D

flex_attention: Any = module.flex_attention
sdpa: Any = F.scaled_dot_product_attention
LENGTHS = torch.tensor([5, 0, 7, 1])
B, H, T, E = 4, 2, 7, 3


def softcapped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(score) * 2 + 0.1 * (q - k) * (h + 1) + 0.01 * b


def blocks_of(causal: str) -> Any:
    if causal == "no":
        return None
    like = torch.strided if causal == "padded" else torch.jagged
    return mg.block_mask(mg.from_lengths(torch.zeros(B, T), LENGTHS, layout=like), causal=True)


def three(layout: torch.layout, heads: int) -> tuple[list[Tensor], list[Any]]:
    """Queries, keys and values, with garbage in the padding, and of one pattern."""
    torch.manual_seed(0)
    inside = torch.arange(T) < LENGTHS[:, None]
    data = torch.randn(3, B, H, T, E, dtype=D)
    data[:, ~inside[:, None].expand(B, H, T)] = torch.nan
    parts = [data[0], data[1][:, :heads], data[2][:, :heads]]
    parts = [part.clone().requires_grad_() for part in parts]
    if layout == torch.strided:
        return parts, [mg.from_lengths(part, LENGTHS, 2) for part in parts]
    like = mg.from_lengths(torch.zeros(B, T), LENGTHS, layout=torch.jagged)
    rows = [part.transpose(1, 2)[inside] for part in parts]
    return parts, [mg.from_offsets(part, like.offsets(), T).transpose(1, 2) for part in rows]


def alone(parts: list[Tensor], score_mod: Any, causal: bool) -> Tensor:
    """Attention of each sequence by itself, by the formula."""
    found = torch.zeros(B, H, T, E, dtype=D)
    for b, n in enumerate(LENGTHS.tolist()):
        q, k, v = (part[b, :, :n].repeat_interleave(H // part.shape[1], 0) for part in parts)
        scores, place = q @ k.transpose(-2, -1) / E**0.5, torch.arange(n)
        if score_mod is not None:
            head = torch.arange(H)[:, None, None]
            scores = score_mod(scores, torch.tensor(b), head, place[:, None], place)
        if causal:
            scores = scores.masked_fill(place[:, None] < place, -torch.inf)
        found[b, :, :n] = scores.softmax(-1) @ v
    return found


@pytest.mark.parametrize("heads", [H, 1])
@pytest.mark.parametrize("causal", ["no", "padded", "rows"])
@pytest.mark.parametrize("score_mod", [None, softcapped], ids=["plain", "softcapped"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_each_sequence_attends_to_itself(
    layout: torch.layout, score_mod: Any, causal: str, heads: int
) -> None:
    if causal == "rows" and (layout == torch.strided or score_mod is not None):
        return  # positions of rows are other arguments of score_mod
    parts, masked = three(layout, heads)
    found = flex_attention(*masked, score_mod, blocks_of(causal), enable_gqa=heads < H)
    assert found.layout == (torch.strided if causal == "padded" else layout)
    inside = (torch.arange(T) < LENGTHS[:, None])[:, None, :, None].expand(B, H, T, E)
    assert found.to_dense().mask.equal(inside)
    both = found.to_dense().filled(0), alone(parts, score_mod, causal != "no")
    torch.testing.assert_close(*both)
    weights = torch.randn(B, H, T, E, dtype=D)
    torch.testing.assert_close(*(torch.autograd.grad((y * weights).sum(), parts) for y in both))


@pytest.mark.compiled(keep=2)
@pytest.mark.parametrize("causal", ["no", "padded", "rows"])
def test_compiled(causal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With FlexAttention's own operator, as on a GPU, and with the formula, as on a CPU."""
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    blocks, score_mod = blocks_of(causal), None if causal == "rows" else softcapped

    def attend(x: Any) -> Any:
        return flex_attention(*(part.transpose(1, 2) for part in x.unbind(2)), score_mod, blocks)

    inside = torch.arange(T) < LENGTHS[:, None]
    data = torch.randn(B, T, 3, H, E, dtype=D).masked_fill(~inside[..., None, None, None], torch.nan)
    x = mg.from_lengths(data, LENGTHS, layout=torch.strided if causal == "no" else torch.jagged)
    leaf = x._values
    for with_gradient in (False, True):
        monkeypatch.setattr(rules, "_kernel_runs", lambda _, formula=with_gradient: not formula)
        leaf.requires_grad_(with_gradient)
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager" if with_gradient else backend)
        found, wanted = compiled(x).to_dense(), attend(x).to_dense()
        assert found.mask.equal(wanted.mask)
        torch.testing.assert_close(found.filled(0), wanted.filled(0))
    assert any("flex_attention" in name for name in seen)
    both = [torch.autograd.grad(y.filled(0).square().sum(), leaf)[0] for y in (found, wanted)]
    torch.testing.assert_close(*both)


def test_plain_tensors_and_what_is_refused() -> None:
    q = torch.randn(1, 2, 8, 4)
    compiled: Any = torch.compile(flex_attention, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, q, q), sdpa(q, q, q))
    x = mg.from_lengths(q, torch.tensor([5]), 2)
    assert_entries(flex_attention(x, q, q)[0, 0, 5:], [[None] * 4] * 3)
    with pytest.raises(
        mg.UnsupportedOperationError, match=r"block_mask=mg.block_mask\(x\), return_lse=True\)"
    ):
        flex_attention(x, q, q, return_lse=True)
