"""transformers: padding as masked embeddings, through tiny models of unmodified architectures.

The truth is the model on each sequence alone, without padding and without an attention mask.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.errors import MaskgradError, UnsupportedOperationError

#: The same in the words of each architecture.
SIZES: dict[str, int] = {
    **dict.fromkeys(["hidden_size", "dim", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim"], 16),
    **dict.fromkeys(
        ["num_hidden_layers", "n_layers", "n_layer", "num_attention_heads", "n_heads", "n_head"], 2
    ),
    **dict.fromkeys(["intermediate_size", "hidden_dim", "d_inner", "ffn_dim"], 24),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 8),
    **dict.fromkeys(["rotary_dim", "state_size", "num_heads", "chunk_size"], 4),
    **dict.fromkeys(["num_local_experts", "num_experts"], 3),
    "num_key_value_heads": 1,
    "n_groups": 1,
    "num_experts_per_tok": 2,
    "attention_hidden_size": 16,
    "vocab_size": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "eos_token_id": 49,
}
OTHERS: dict[str, Any] = {"Qwen3": {"head_dim": 8}, "Gemma2": {"head_dim": 8}, "Mamba2": {"head_dim": 8}}
FUNNEL = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1], "vocab_size": 50}
MODELS = re.findall(
    r"\w+",
    "Bert Roberta Electra Albert DistilBert Deberta DebertaV2 MPNet ModernBert RoFormer XLNet GPT2 GPTJ OPT GPTNeoX "
    "Falcon Llama Mistral Qwen2 Qwen3 Gemma2 Phi3 Cohere",
)
CACHED = ("Mamba", "Mamba2", "Rwkv")
LENGTHS = torch.tensor([6, 3, 4])
THERE = torch.arange(6) < LENGTHS[:, None]


def model_of(name: str, kind: str = "Model", **config: Any) -> Any:
    torch.manual_seed(3)
    options = config or SIZES | OTHERS.get(name, {})
    return getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(**options)).eval()


def embeddings(there: Tensor = THERE) -> tuple[mg.MaskedTensor, Tensor]:
    """With NaN where there is padding; and without."""
    torch.manual_seed(5)
    e = torch.randn(3, 6, 16)
    return mg.masked(torch.where(there[..., None], e, torch.nan).requires_grad_(), there[..., None]), e


def check(model: nn.Module, x: mg.MaskedTensor, e: Tensor, **options: Any) -> None:
    """Hidden states of each sequence, and the gradients of all."""
    found = model(inputs_embeds=x, **options)[0]
    assert torch.equal(found.mask.any(-1), THERE)
    found.square().sum().backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for i, length in enumerate(LENGTHS.tolist()):
        alone = model(inputs_embeds=e[i : i + 1, :length], **options)[0][0]
        torch.testing.assert_close(found.filled(torch.nan)[i, :length], alone, rtol=1e-4, atol=1e-5)
        alone.square().sum().backward()
    for gradient, param in zip(gradients, model.parameters(), strict=True):
        if gradient is not None or param.grad is not None:
            torch.testing.assert_close(gradient, param.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_architectures(name: str) -> None:
    x, e = embeddings()
    check(model_of(name), x, e)
    assert not x._values.grad[~THERE].any()


@pytest.mark.parametrize("name", ["Bert", "DebertaV2", "ModernBert", "GPT2", "Llama", "Gemma2"])
def test_jagged_embeddings(name: str) -> None:
    _, e = embeddings()
    check(model_of(name), mg.from_lengths(e, LENGTHS, layout=torch.jagged), e)


@pytest.mark.parametrize("name", CACHED)
def test_states(name: str) -> None:
    x, e = embeddings()
    model = model_of(name)
    check(model, x, e, use_cache=False)
    for options in ({}, {"use_cache": True}):
        with pytest.raises(UnsupportedOperationError, match=r"Call the model with use_cache=False\.$"):
            model(inputs_embeds=x, **options)
    assert model(inputs_embeds=e, use_cache=True)[0].shape == e.shape


def test_funnel() -> None:
    x, e = embeddings()
    check(model_of("Funnel", **FUNNEL, truncate_seq=False), x, e)
    model = model_of("Funnel", **FUNNEL)
    with torch.no_grad():
        found = model(inputs_embeds=x)[0]
        alone = model(inputs_embeds=e[1:2, :3])[0]
        padded = model(inputs_embeds=x.filled(0.0), attention_mask=THERE.long())[0]
    assert not torch.allclose(padded[1, :3], alone[0], atol=1e-3)
    assert not torch.allclose(found.filled(0.0)[1, :3], alone[0], atol=1e-3)


@pytest.mark.parametrize("name", ["Bloom", "FNet"])
def test_architectures_that_refuse(name: str) -> None:
    with pytest.raises(MaskgradError, match=r"x\.filled\(value\)"):
        model_of(name)(inputs_embeds=embeddings()[0])


@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe"])
def test_experts_refuse(name: str) -> None:
    x, e = embeddings()
    model = model_of(name)
    for given in (x, mg.from_lengths(e, LENGTHS, layout=torch.jagged)):
        with pytest.raises(UnsupportedOperationError, match=r"attention_mask=x\.mask\.any\(-1\)\.long\(\)"):
            model(inputs_embeds=given)
    found = model(inputs_embeds=x.filled(0.0), attention_mask=x.mask.any(-1).long())[0]
    torch.testing.assert_close(found[1, :3], model(inputs_embeds=e[1:2, :3])[0][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_padding_on_the_left(name: str) -> None:
    model, there = model_of(name), THERE.flip(1)
    x, e = embeddings(there)
    positions = (there.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        found, off = model(inputs_embeds=x, position_ids=positions)[0], model(inputs_embeds=x)[0]
        for i, length in enumerate(LENGTHS.tolist()):
            alone = model(inputs_embeds=e[i : i + 1, 6 - length :])[0][0]
            torch.testing.assert_close(found.filled(torch.nan)[i, 6 - length :], alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(off.filled(0.0)[1, 3:], found.filled(0.0)[1, 3:], atol=1e-3)


@pytest.mark.parametrize("name", ["Llama", "Mamba"])
def test_generating(name: str) -> None:
    model, there = model_of(name, "ForCausalLM"), THERE.flip(1)
    x, e = embeddings(there)
    with pytest.raises(
        UnsupportedOperationError,
        match=r"Pad on the left, and call generate\(inputs_embeds=x\.filled\(0\.\), attention_mask=",
    ):
        model.generate(inputs_embeds=x, max_new_tokens=3, do_sample=False)
    options = {"max_new_tokens": 3, "do_sample": False}
    found = model.generate(inputs_embeds=x.filled(0.0), attention_mask=x.mask.any(-1).long(), **options)
    alone = [model.generate(inputs_embeds=e[i : i + 1][:, there[i]], **options)[0].tolist() for i in range(3)]
    assert found.tolist() == alone


def test_generating_without_attention_masks() -> None:
    model, there = model_of("Rwkv", "ForCausalLM"), THERE.flip(1)
    x, e = embeddings(there)
    with pytest.raises(
        UnsupportedOperationError, match="one sequence at a time for models that read no attention"
    ):
        model.generate(inputs_embeds=x, max_new_tokens=3)
    padded = model(inputs_embeds=x.filled(0.0), attention_mask=there.long(), use_cache=False).logits[1, -1]
    alone = model(inputs_embeds=e[1:2, there[1]], use_cache=False).logits[0, -1]
    assert not torch.allclose(padded, alone, atol=1e-3)
