"""transformers: padding as masked embeddings, through tiny models of unmodified architectures.

The truth is the model on each sequence alone, without padding and without an attention mask.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.errors import MaskgradError, UnsupportedOperationError
from tests.ecosystem.rows import beware, one_line, refused, works

COMMON = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 50,
}
GROUPED = {**COMMON, "num_key_value_heads": 1}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
FUNNEL = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1], "vocab_size": 50}
STATE = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4}

MODELS: dict[str, dict[str, Any]] = {
    "Bert": COMMON,
    "Roberta": {**COMMON, "max_position_embeddings": 40},
    "Electra": {**COMMON, "embedding_size": 16},
    "Albert": {**COMMON, "embedding_size": 16},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 50},
    "Deberta": COMMON,
    "DebertaV2": COMMON,
    "MPNet": COMMON,
    "ModernBert": {
        **COMMON,
        "pad_token_id": 0,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "RoFormer": {**COMMON, "embedding_size": 16},
    "XLNet": {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "vocab_size": 50},
    "GPT2": GPT,
    "GPTJ": {**GPT, "rotary_dim": 4},
    "OPT": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 24,
        "vocab_size": 50,
        "word_embed_proj_dim": 16,
    },
    "GPTNeoX": COMMON,
    "Falcon": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50},
    "Llama": GROUPED,
    "Mistral": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 8},
    "Gemma2": {**GROUPED, "head_dim": 8},
    "Phi3": {**GROUPED, "pad_token_id": 0},
    "Cohere": GROUPED,
}
EXPERTS: dict[str, dict[str, Any]] = {
    "Mixtral": {**GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2},
    "Qwen2Moe": {
        **GROUPED,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
}
CACHED: dict[str, dict[str, Any]] = {
    "Mamba": STATE,
    "Mamba2": {**STATE, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "Rwkv": {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 50, "attention_hidden_size": 16},
}
LENGTHS = torch.tensor([6, 3, 4])
THERE = torch.arange(6) < LENGTHS[:, None]


def model_of(name: str, **config: Any) -> nn.Module:
    torch.manual_seed(3)
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**config)).eval()


def embeddings() -> tuple[mg.MaskedTensor, Tensor]:
    """With NaN where there is padding; and without."""
    torch.manual_seed(5)
    e = torch.randn(3, 6, 16)
    return mg.masked(torch.where(THERE[..., None], e, torch.nan).requires_grad_(), THERE[..., None]), e


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


@works(
    "transformers",
    "`inputs_embeds=mg.masked(embeddings, mask[..., None])`, without `attention_mask`: BERT, RoBERTa, ELECTRA, ALBERT, "
    "DistilBERT, DeBERTa, DeBERTa-v2, MPNet, ModernBERT, RoFormer, XLNet, GPT-2, GPT-J, OPT, GPT-NeoX, Falcon, Llama, "
    "Mistral, Qwen2, Qwen3, Gemma 2, Phi-3, Cohere; forward and backward",
)
@pytest.mark.parametrize("name", MODELS)
def test_architectures(name: str) -> None:
    x, e = embeddings()
    check(model_of(name, **MODELS[name]), x, e)
    assert not x._values.grad[~THERE].any()


@works("transformers", "the same with jagged embeddings, at the cost of their tokens")
@pytest.mark.parametrize("name", ["Bert", "DebertaV2", "ModernBert", "GPT2", "Llama", "Gemma2"])
def test_jagged_embeddings(name: str) -> None:
    _, e = embeddings()
    check(model_of(name, **MODELS[name]), mg.from_lengths(e, LENGTHS, layout=torch.jagged), e)


@one_line("transformers", "Mamba, Mamba 2, RWKV", "`model(inputs_embeds=x, use_cache=False)`")
@refused("transformers", "the caches of Mamba, Mamba 2 and RWKV (on by default)", "`use_cache=False`")
@pytest.mark.parametrize("name", CACHED)
def test_states(name: str) -> None:
    x, e = embeddings()
    model = model_of(name, **CACHED[name])
    check(model, x, e, use_cache=False)
    for options in ({}, {"use_cache": True}):
        with pytest.raises(UnsupportedOperationError, match=r"Call the model with use_cache=False\.$"):
            model(inputs_embeds=x, **options)
    assert model(inputs_embeds=e, use_cache=True)[0].shape == e.shape
    ids = mg.masked(torch.where(THERE, torch.randint(1, 20, (3, 6)), 10**9), THERE)
    found = model(input_ids=ids, use_cache=False)[0]
    for i, length in enumerate(LENGTHS.tolist()):
        alone = model(input_ids=ids.filled(0)[i : i + 1, :length], use_cache=False)[0][0]
        torch.testing.assert_close(found.filled(torch.nan)[i, :length], alone, rtol=1e-4, atol=1e-5)


@beware(
    "transformers",
    "Funnel drops the last position of the batch, not of each sequence, also with `attention_mask`",
    "`FunnelConfig(truncate_seq=False)`",
)
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


@refused(
    "transformers",
    "Bloom (a hand-written autograd function), FNet (Fourier transforms)",
    "`x.filled(0.)` with `attention_mask`",
)
@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("Bloom", {"hidden_size": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50}, r"x\.filled\(value\)"),
        (
            "FNet",
            {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "intermediate_size": 24,
                "vocab_size": 50,
                "type_vocab_size": 2,
            },
            r"x\.filled\(value\)",
        ),
    ],
)
def test_architectures_that_refuse(name: str, config: dict[str, Any], words: str) -> None:
    x, _ = embeddings()
    with pytest.raises(MaskgradError, match=words):
        model_of(name, **config)(inputs_embeds=x)


@refused(
    "transformers",
    "mixtures of experts, Mixtral and Qwen2-MoE among them",
    "`model(inputs_embeds=x.filled(0.), attention_mask=x.mask.any(-1).long())`",
)
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("name", EXPERTS)
def test_experts_refuse(name: str, layout: torch.layout) -> None:
    x, e = embeddings()
    model = model_of(name, **EXPERTS[name])
    with pytest.raises(UnsupportedOperationError, match=r"attention_mask=x\.mask\.any\(-1\)\.long\(\)"):
        model(inputs_embeds=x if layout is torch.strided else mg.from_lengths(e, LENGTHS, layout=layout))
    found = model(inputs_embeds=x.filled(0.0), attention_mask=x.mask.any(-1).long())[0]
    torch.testing.assert_close(found[1, :3], model(inputs_embeds=e[1:2, :3])[0][0], rtol=1e-4, atol=1e-5)


@beware(
    "transformers",
    "left padding in models with learned positions (BERT, GPT-2), also with `attention_mask`",
    "`position_ids=(mask.cumsum(1) - 1).clamp(min=0)`",
)
@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_padding_on_the_left(name: str) -> None:
    model, (_, e) = model_of(name, **MODELS[name]), embeddings()
    there = THERE.flip(1)
    x = mg.masked(torch.where(there[..., None], e, torch.nan), there[..., None])
    positions = (there.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        found, off = model(inputs_embeds=x, position_ids=positions)[0], model(inputs_embeds=x)[0]
        for i, length in enumerate(LENGTHS.tolist()):
            alone = model(inputs_embeds=e[i : i + 1, 6 - length :])[0][0]
            torch.testing.assert_close(found.filled(torch.nan)[i, 6 - length :], alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(off.filled(0.0)[1, 3:], found.filled(0.0)[1, 3:], atol=1e-3)


@refused(
    "transformers",
    "`generate(inputs_embeds=x)`",
    "left padding, `generate(inputs_embeds=x.filled(0.), attention_mask=x.mask.any(-1).long())`",
)
@pytest.mark.parametrize("name", ["Llama", "Mamba"])
def test_generating(name: str) -> None:
    torch.manual_seed(3)
    ends = {"pad_token_id": 0, "eos_token_id": 49, "bos_token_id": 1}
    config = getattr(transformers, f"{name}Config")(**{**MODELS, **CACHED}[name] | ends)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    _, e = embeddings()
    there = THERE.flip(1)
    x = mg.masked(torch.where(there[..., None], e, torch.nan), there[..., None])
    with pytest.raises(
        UnsupportedOperationError,
        match=r"Pad on the left, and call generate\(inputs_embeds=x\.filled\(0\.\), attention_mask=",
    ):
        model.generate(inputs_embeds=x, max_new_tokens=3, do_sample=False)
    options = {"max_new_tokens": 3, "do_sample": False}
    found = model.generate(inputs_embeds=x.filled(0.0), attention_mask=x.mask.any(-1).long(), **options)
    alone = [model.generate(inputs_embeds=e[i : i + 1][:, there[i]], **options)[0].tolist() for i in range(3)]
    assert found.tolist() == alone


@beware(
    "transformers",
    "RWKV ignores `attention_mask`: left padding is part of the sequence, also in `generate`",
    "one sequence at a time, `generate(inputs_embeds=e[i, mask[i]][None])`",
)
def test_generating_without_attention_masks() -> None:
    torch.manual_seed(3)
    config = transformers.RwkvConfig(**CACHED["Rwkv"], pad_token_id=0, eos_token_id=49, bos_token_id=1)
    model = transformers.RwkvForCausalLM(config).eval()
    _, e = embeddings()
    there = THERE.flip(1)
    x = mg.masked(torch.where(there[..., None], e, torch.nan), there[..., None])
    with pytest.raises(
        UnsupportedOperationError, match="one sequence at a time for models that read no attention"
    ):
        model.generate(inputs_embeds=x, max_new_tokens=3)
    padded = model(inputs_embeds=x.filled(0.0), attention_mask=there.long(), use_cache=False).logits[1, -1]
    alone = model(inputs_embeds=e[1:2, there[1]], use_cache=False).logits[0, -1]
    assert not torch.allclose(padded, alone, atol=1e-3)
