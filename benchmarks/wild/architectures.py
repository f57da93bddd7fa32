"""Every architecture of transformers as a tiny model with random weights, from its configuration class."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn

__all__ = ["VOCABULARY", "NothingToPadError", "architectures", "build", "config_of"]

#: The first of these tables of transformers that has an architecture tells its model; "sequences" is a second one.
HEADS = {
    "first": (
        "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "CTC", "RNNT", "TDT",
        "AUDIO_CLASSIFICATION", "OBJECT_DETECTION", "ZERO_SHOT_OBJECT_DETECTION", "INSTANCE_SEGMENTATION",
        "TIME_SERIES_PREDICTION", "PRETRAINING", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "TOKEN_CLASSIFICATION",
        "QUESTION_ANSWERING", "SEQUENCE_CLASSIFICATION", "TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM", "DECISION",
        "MAPPING",
    ),
    "sequences": ("SEQUENCE_CLASSIFICATION", "AUDIO_CLASSIFICATION"),
}  # fmt: skip
VOCABULARY = 64
#: arguments that say what is padding, or was not observed
MASKS = ("attention_mask", "pixel_mask", "past_observed_mask")
#: regular expressions for the whole name of a field, and its size; the first that fits counts
_SIZES = [
    (r"pad_token_id|pad_id", 0),
    (r"bos_token_id|decoder_start_token_id|cls_token_id", 1),
    (r"eos_token_id|sep_token_id", 2),
    (r".*vocab_size(_or_config_json_file)?|n_words|n_tokens", VOCABULARY),
    (r"num_(hidden_)?layers_.*|.*(n_layers?|num_layers|blocks|_layers)|depth", 2),
    (r".*(key_value_heads|kv_heads|num_query_groups|kv_n_heads|head_kv)", 2),
    (r".*(_heads|n_head|nhead)", 4),
    (r".*(head_dim|head_size|d_kv|qk_head_dim|kv_channels)", 8),
    (r".*(lora_rank|lora_dim)|time_step_rank", 16),
    (r"(?!chunk_size).*(intermediate_size|feed_?forward).*", 64),
    (r".*(ffn_dim|ffn_hidden_size|mlp_dim)|d_ff|n_inner|d_inner", 64),
    (r".*(n_routed_experts|num_experts|num_local_experts|n_experts)", 4),
    (r".*(experts_per_tok(en)?|top_k_experts|moe_k|moe_topk|moe_top_k)", 2),
    (r"n_group|topk_group|num_expert_group|.*n_groups", 1),
    (r".*(state_size|d_state)", 8),
    (r".*(hidden_size|hidden_dim|d_model|n_embd|embed_dim|emb_dim|embedding_size|proj_size|projection_dim)", 32),
    (r"lru_width|hidden_size_per_layer_input|.*output_dim|word_embed_proj_dim|dim|d_embed", 32),
    (r".*(max_position_embeddings|_positions|n_ctx|context_length|max_seq_len|max_length|seq_length)", 64),
    (r".*(window|window_size|local_attention|chunk_length|attention_chunk_size)", 4),
    (r".*image_size", 32),
    (r".*patch_size", 8),
    (r".*(num_mel_bins|feature_size)|input_feat_per_channel", 16),
]  # fmt: skip
#: where the tables of transformers name no head with a loss
_PREDICTS: dict[str, str] = {
    name.lower(): f"{name}ForPrediction" for name in ("PatchTST", "PatchTSMixer", "Informer", "Autoformer")
} | {"time_series_transformer": "TimeSeriesTransformerForPrediction"}
_SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2}
#: of the convolutions before an encoder of sound
_FRAMES = {"conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2)}
_PATCHES = {
    "prediction_length": 4, "context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2,
}  # fmt: skip
#: by model type, what the rules above get wrong
_OWN: dict[str, dict[str, Any]] = {
    "autoformer": _SERIES | {"label_length": 4, "moving_average": 3},
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "patchtst": _PATCHES,
    "patchtsmixer": _PATCHES,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "glm5_next_text": {"num_key_value_heads": 4},
    "granite_speech5_encoder": {"context_size": 32},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "big_bird": {"attention_type": "original_full"},
    "led": {"attention_window": 4},
    "longformer": {"attention_window": 4},
    "reformer": {
        "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16], "lsh_attn_chunk_length": 4, "num_buckets": 2,
        "local_attn_chunk_length": 4,
    },
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "lilt": {"hidden_size": 48},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8, "visual_embed": False},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_text": {"num_kv_shared_layers": 0},
    "gemma4_unified_text": {"num_kv_shared_layers": 0},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
    "wav2vec2-bert": {"vocab_size": VOCABULARY},
    "wav2vec2-conformer": {"vocab_size": VOCABULARY},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
}  # fmt: skip
# with a latent attention, keys have as many heads as queries
for _name in (
    "axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "minicpm3",
    "mistral4", "mistral_large4_text", "sarvam_mla", "youtu",
):  # fmt: skip
    _OWN[_name] = _OWN.get(_name, {}) | {"num_key_value_heads": 4}
# positions of time, height and width share the eight numbers of a head
for _name in (
    "glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text", "qwen2_vl_text", "qwen2_5_vl_text",
):  # fmt: skip
    _OWN[_name] = {
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0,
        }
    }  # fmt: skip
_RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
           "out_features": ["stage4"]}  # fmt: skip
for _name in ("detr", "conditional_detr", "deformable_detr", "dab-detr", "table-transformer"):
    _OWN[_name] = {"backbone_config": _RESNET, "use_timm_backbone": False, "backbone": None, "num_feature_levels": 1,
                   "use_pretrained_backbone": False}  # fmt: skip
_LARGEST = 30_000_000


class NothingToPadError(Exception):
    """The model takes no mask, or input of a kind that is not made here."""


def architectures() -> dict[str, dict[str, str]]:
    """The name of each architecture, and the class of each of its heads that is examined by the table that has it."""
    from transformers.models.auto import configuration_auto, modeling_auto

    names: Any = vars(configuration_auto)["CONFIG_MAPPING_NAMES"]

    found: dict[str, dict[str, str]] = {}
    for name in names:
        classes: dict[str, str] = {}
        for heads in HEADS.values():
            for head in heads:
                table = "MODEL_MAPPING_NAMES" if head == "MAPPING" else f"MODEL_FOR_{head}_MAPPING_NAMES"
                model = getattr(modeling_auto, table).get(name)
                if model is not None:
                    classes.setdefault(head, model if isinstance(model, str) else model[0])
                    break
        if name in _PREDICTS:
            classes = {"TIME_SERIES_PREDICTION": _PREDICTS[name]}
        if classes:
            found[name] = classes
    return found


def config_of(kind: type, **given: Any) -> Any:
    """A configuration with small sizes wherever its class has a field for one."""
    own = _OWN.get(getattr(kind, "model_type", ""), {}) | given
    takes = inspect.signature(kind).parameters
    fields = {}
    for name, parameter in takes.items():
        size = _size_of(name, parameter.default)
        if size is not None:
            fields[name] = size
    parts = getattr(kind, "sub_configs", None) or {}
    for name in parts:
        if name not in own:
            inner = type(getattr(kind(), name, None))
            if inner is not type(None):
                role = {"is_decoder": True, "add_cross_attention": True} if name == "decoder" else {}
                fields[name] = config_of(inner, **role).to_dict()
    return kind(**(fields | {name: value for name, value in own.items() if name in takes}))


def _size_of(name: str, default: Any) -> Any:
    if re.fullmatch(r".*layerdrop|mask_time_prob|mask_feature_prob", name):
        return 0.0  # random numbers of Python and NumPy, which are no dropout
    if isinstance(default, bool) or not (default is None or isinstance(default, (int, list, tuple))):
        return None
    if name in _FRAMES and isinstance(default, (list, tuple)):
        return _FRAMES[name]
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            if isinstance(default, (list, tuple)):
                return (
                    type(default)(min(size, entry) for entry in default)
                    if all(type(e) is int for e in default)
                    else None
                )
            return None if default is None and not name.endswith("token_id") else size
    if name.endswith(("token_id", "token_index")) and isinstance(default, int):
        return VOCABULARY - 1 - sum(map(ord, name)) % 16  # other special tokens, at the end of the vocabulary
    return None


def build(name: str, class_name: str) -> nn.Module:
    """A model with random weights; whatever its constructor raises if the sizes do not fit together."""
    import transformers

    kind = getattr(transformers, class_name)
    if not any(mask in inspect.signature(kind.forward).parameters for mask in MASKS):
        raise NothingToPadError("it takes no mask")
    config = config_of(kind.config_class or transformers.CONFIG_MAPPING[name])
    if getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in kind(config).parameters())
    if count > _LARGEST:
        raise ValueError(f"{count / 1e6:.0f} million parameters: no small sizes are known")
    torch.manual_seed(0)
    model: nn.Module = kind(config)
    _trained_a_little(model)
    return model


def _trained_a_little(model: nn.Module) -> None:
    """Noise on weights that are all equal: a gate of zero, for instance, hides what it would let through."""
    for parameter in model.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter.data.add_(torch.randn(parameter.shape), alpha=0.02)
