"""Models of other packages that take a mask, with random weights; `make wild` installs the packages."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.wild.architectures import VOCABULARY
from benchmarks.wild.batches import LENGTHS, Samples
from benchmarks.wild.oracle import Case

__all__ = ["MODELS", "Model", "case_of"]

D = 32


@dataclass(frozen=True)
class Model:
    """How a model of a package is made, and what it takes.

    Attributes:
        package: as pip knows it.
        path: module and class, after a dot.
        options: of the class; a value that is a ``Model`` is made first.
        takes: "ids", "features" or "points" (features and places).
        mask: the argument that says what is real.
        inverted: whether that is True where padding is.
        given: what else it is called with.
    """

    package: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)
    takes: str = "features"
    mask: str = "mask"
    inverted: bool = False
    given: dict[str, Any] = field(default_factory=dict)

    def make(self) -> nn.Module:
        module, _, name = self.path.rpartition(".")
        options = {
            key: value.make() if isinstance(value, Model) else value for key, value in self.options.items()
        }
        made: nn.Module = getattr(importlib.import_module(module), name)(**options)
        return made


def _layers(kind: str = "Encoder", **options: Any) -> Model:
    sizes = {"dim": D, "depth": 2, "heads": 4, "attn_dim_head": 8}
    return Model("x-transformers", f"x_transformers.{kind}", sizes | options)


def _words(layers: Model, **options: Any) -> Model:
    sizes = {"num_tokens": VOCABULARY, "max_seq_len": 64, "attn_layers": layers}
    return Model("x-transformers", "x_transformers.TransformerWrapper", sizes | options, "ids")


def _dense(name: str, **options: Any) -> Model:
    channels = {"in_channels": D, "out_channels": D} | options
    return Model("torch-geometric", f"torch_geometric.nn.{name}", channels, "graph")


def _language(package: str, name: str, mask: str = "mask", **options: Any) -> Model:
    sizes = {"num_tokens": VOCABULARY, "dim": D, "depth": 2, "heads": 4, "max_seq_len": 16}
    return Model(package, f"{package.replace('-', '_')}.{name}", sizes | options, "ids", mask)


_HEADS = {"heads": 4, "dim_head": 8}
_TOKENS = {"num_tokens": VOCABULARY, "dim": D, "depth": 2, "max_seq_len": 64}
_PERCEIVER = {
    "num_freq_bands": 2, "max_freq": 4.0, "depth": 2, "input_axis": 1, "input_channels": D, "num_latents": 4,
    "latent_dim": D, "num_classes": 5, "latent_heads": 4, "latent_dim_head": 8, "cross_dim_head": 8,
}  # fmt: skip
_CODEBOOK = {"dim": D, "codebook_size": 16, "learnable_codebook": True, "ema_update": False}
_COLT = {
    "dim": D, "num_heavy_attn_tokens_q": 4, "num_heavy_attn_tokens_kv": 4, "num_heavy_ff_tokens": 4,
    "light_dim_head": 8, "light_heads": 4, "light_window_size": 4, "heavy_dim_head": 8, "heavy_heads": 4,
}  # fmt: skip
_POINTS = {"dim": D, "pos_mlp_hidden_dim": 16, "attn_mlp_hidden_mult": 2}


def _of(package: str, name: str, takes: Any = "features", **options: Any) -> Model:
    """A model of a package whose module is called as the package is."""
    module = package.lower().replace("-", "_")
    return Model(package, f"{module}.{name}", options, takes)


#: by name
MODELS: dict[str, Model] = {
    "encoder": _words(_layers()),
    "decoder": _words(_layers("Decoder")),
    "encoder with alibi": _words(_layers(alibi_pos_bias=True, alibi_num_heads=2), use_abs_pos_emb=False),
    "encoder with relative positions": _words(_layers(rel_pos_bias=True), use_abs_pos_emb=False),
    "encoder with rotary positions": _words(_layers(rotary_pos_emb=True), use_abs_pos_emb=False),
    "encoder with shifted tokens": _words(_layers(shift_tokens=1)),
    "decoder with shifted tokens": _words(_layers("Decoder", shift_tokens=1)),
    "encoder with memory tokens": _words(_layers(), num_memory_tokens=4),
    "encoder with a memory of keys": _words(_layers(attn_num_mem_kv=4)),
    "encoder with talking heads": _words(_layers(attn_pre_talking_heads=True)),
    "encoder with flash attention": _words(_layers(attn_flash=True)),
    "encoder with scale norm": _words(_layers(use_scalenorm=True, ff_glu=True)),
    "encoder with a mean": _words(_layers(), average_pool_embed=True),
    "encoder with a class token": _words(_layers(), use_cls_token=True),
    "encoder with dropout": _words(_layers(attn_dropout=0.1, ff_dropout=0.1), emb_dropout=0.1),
    "continuous encoder": _of(
        "x-transformers", "ContinuousTransformerWrapper", dim_in=D, dim_out=D, max_seq_len=64, attn_layers=_layers()
    ),
    "performer": _language("performer-pytorch", "PerformerLM", dim_head=8),
    "causal performer": _language("performer-pytorch", "PerformerLM", dim_head=8, causal=True, nb_features=8),
    "linear": _language("linear-attention-transformer", "LinearAttentionTransformerLM", "input_mask"),
    "causal linear": _language(
        "linear-attention-transformer", "LinearAttentionTransformerLM", "input_mask", causal=True
    ),
    "nystromformer layers": _of("nystrom-attention", "Nystromformer", dim=D, depth=2, num_landmarks=4, **_HEADS),
    "nystrom attention without convolution": _of(
        "nystrom-attention", "NystromAttention", dim=D, num_landmarks=4, residual=False, **_HEADS
    ),
    "local": _of("local-attention", "LocalTransformer", "ids", local_attn_window_size=4, causal=True, **_TOKENS),
    "local attention": _of("local-attention", "transformer.LocalMHA", dim=D, window_size=4, **_HEADS),
    "h-transformer": _of(
        "h-transformer-1d", "HTransformer1D", "ids", block_size=2, **_TOKENS | _HEADS | {"max_seq_len": 16}
    ),
    "perceiver": _of("perceiver-pytorch", "Perceiver", **_PERCEIVER),
    "perceiver without frequencies": _of("perceiver-pytorch", "Perceiver", fourier_encode_data=False, **_PERCEIVER),
    "perceiver io": _of(
        "perceiver-pytorch", "PerceiverIO", depth=2, dim=D, queries_dim=D, num_latents=4, latent_dim=D, latent_heads=4,
        latent_dim_head=8, cross_dim_head=8,
    ),
    "egnn": _of("egnn-pytorch", "EGNN", "points", dim=D, m_dim=8),
    "egnn of neighbours": _of("egnn-pytorch", "EGNN", "points", dim=D, m_dim=8, num_nearest_neighbors=3),
    "egnn network": _of(
        "egnn-pytorch", "EGNN_Network", "points", dim=D, depth=2, num_nearest_neighbors=3, norm_coors=True
    ),
    "egnn network with global attention": _of(
        "egnn-pytorch", "EGNN_Network", "points", dim=D, depth=2, global_linear_attn_every=1, num_global_tokens=2
    ),
    "en-transformer": _of(
        "en-transformer", "EnTransformer", "points", dim=D, depth=2, heads=4, dim_head=32, neighbors=3
    ),
    "point transformer": _of("point-transformer-pytorch", "PointTransformerLayer", "points", **_POINTS),
    "point transformer of neighbours": _of(
        "point-transformer-pytorch", "PointTransformerLayer", "points", num_neighbors=3, **_POINTS
    ),
    "quantized": _of("vector-quantize-pytorch", "VectorQuantize", **_CODEBOOK),
    "quantized residuals": _of("vector-quantize-pytorch", "ResidualVQ", num_quantizers=2, **_CODEBOOK),
    "colt5": _of("CoLT5-attention", "ConditionalRoutedTransformerBlock", **_COLT),
    "colt5 feed forward": _of("CoLT5-attention", "ConditionalRoutedFeedForward", dim=D, num_heavy_tokens=4),
    "taylor series": _of("taylor-series-linear-attention", "TaylorSeriesLinearAttn", dim=D, **_HEADS),
    "soft experts": _of("soft-moe-pytorch", "SoftMoE", dim=D, seq_len=12, num_experts=4),
    "soft experts with dynamic slots": _of("soft-moe-pytorch", "DynamicSlotsSoftMoE", dim=D, num_experts=4),
    "fast": _of("fast-transformer-pytorch", "FastTransformer", "ids", absolute_pos_emb=True, **_TOKENS | _HEADS),
    "induced sets": _of("isab-pytorch", "ISAB", dim=D, heads=4, num_latents=4),
    "memory efficient": _of(
        "memory-efficient-attention-pytorch", "Attention", dim=D, memory_efficient=True, q_bucket_size=4,
        k_bucket_size=4, **_HEADS,
    ),
    "charformer": _of(
        "charformer-pytorch", "GBST", "ids", num_tokens=VOCABULARY, dim=D, max_block_size=4, downsample_factor=4
    ),
    "graph convolution": _dense("DenseGCNConv"),
    "graph sage": _dense("DenseSAGEConv"),
    "graph attention": _dense("DenseGATConv"),
    "graph isomorphism": Model(
        "torch-geometric", "torch_geometric.nn.DenseGINConv",
        {"nn": Model("torch", "torch.nn.Linear", {"in_features": D, "out_features": D})}, "graph",
    ),
    "encoder layer": Model(
        "torch", "torch.nn.TransformerEncoderLayer",
        {"d_model": D, "nhead": 4, "dim_feedforward": 64, "batch_first": True},
        mask="src_key_padding_mask", inverted=True,
    ),
}  # fmt: skip


def case_of(name: str) -> Case:
    """A model of another package with its samples."""
    torch.manual_seed(0)
    described = MODELS[name]
    model = described.make()
    generator = torch.Generator().manual_seed(1)
    rows: list[dict[str, Tensor]] = []
    for size in LENGTHS:
        if described.takes == "ids":
            rows.append({"ids": torch.randint(3, VOCABULARY - 16, (size,), generator=generator)})
            continue
        rows.append({"x": torch.randn(size, D, generator=generator)})
        if described.takes == "points":
            rows[-1]["places"] = torch.randn(size, 3, generator=generator)

    def outputs(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        real = batch["mask"].bool()
        given = [batch[key] for key in batch if key != "mask"]
        if described.takes == "graph":  # a chain of nodes
            places = torch.arange(real.shape[1])
            edges = ((places[:, None] - places).abs() == 1).to(given[0].dtype).expand(len(real), -1, -1)
            given.append(edges * (real[:, :, None] & real[:, None, :]))
        result = model(*given, **{described.mask: ~real if described.inverted else real})
        found = [
            part for part in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(part)
        ]
        return {
            str(place): part for place, part in enumerate(found) if part.is_floating_point() and part.ndim
        }

    return Case(name, model, Samples(rows, dict.fromkeys(rows[0], 0), "mask"), outputs, described.package)
