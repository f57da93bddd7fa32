"""Mixtures of experts in transformers: the specified tokens are sent to the experts, and no others.

Experts are looked up by number and their tokens by position, with indices that were computed from the tokens: of one
that is unspecified the index is, too. Each token is a row of its own to them, so those that are specified go through as
plain rows, and come back to their places.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.package_patches.refusing import has_masked
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.masked_tensor.torch_patches.exchange import exchange

__all__ = ["MIXTURES", "balance", "install"]

#: Models of transformers that have a copy of this loss.
MIXTURES = (
    "dbrx",
    "deepseek_v4",
    "ernie4_5_moe",
    "ernie4_5_vl_moe",
    "flex_olmo",
    "flint",
    "glm4v_moe",
    "glm5_next",
    "gpt_oss",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "jamba",
    "jetmoe",
    "laguna",
    "lara_mini",
    "mellum",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_omni_moe",
    "qwen3_vl_moe",
    "qwen4_exp",
)


def _by_rows(experts_forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(experts_forward)
    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        given = [hidden_states, *args, *kwargs.values()]
        dense = [x._dense() for x in given if isinstance(x, MaskedTensor)]
        if not dense:
            return experts_forward(self, hidden_states, *args, **kwargs)
        masks = [mask.flatten(1) for _, mask in dense]
        there = torch.stack([mask.all(1) for mask in masks]).all(0)
        if any(bool((mask.any(1) & ~there).any()) for mask in masks) or hidden_states.dim() != 2:
            raise UnsupportedOperationError(
                type(self).__name__,
                "a token is specified in part, and experts take it whole",
                "Mask whole tokens, mg.masked(embeddings, mask[..., None]), or give x.filled(0.).",
            )

        def rows(x: Any) -> Any:
            if isinstance(x, MaskedTensor):
                return x._dense()[0][there]
            return x[there] if isinstance(x, torch.Tensor) and x.shape[:1] == there.shape else x

        named = {name: rows(x) for name, x in kwargs.items()}
        found = experts_forward(self, rows(hidden_states), *map(rows, args), **named)
        values = found.new_zeros(len(there), *found.shape[1:])
        values = values.index_put((there.nonzero(as_tuple=True)[0],), found)
        return of_entries(values, there[:, None].expand(values.shape))

    return forward


def _interface(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_interface(*args: Any, **kwargs: Any) -> Any:
        return _by_rows(original(*args, **kwargs))

    return get_interface


def _of_rows(load_balancing_loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss that spreads tokens over experts divides by the number of all rows."""

    @functools.wraps(load_balancing_loss)
    def loss(gate_logits: Any, num_experts: Any = None, top_k: Any = 2, attention_mask: Any = None) -> Any:
        if has_masked(gate_logits):
            dense = [
                x._dense() if isinstance(x, MaskedTensor) else (x, x.new_ones(x.shape)) for x in gate_logits
            ]
            there = torch.stack([mask.bool().flatten(1).all(1) for _, mask in dense]).all(0)
            gate_logits = tuple(values[there] for values, _ in dense)
            if attention_mask is not None:
                attention_mask = torch.as_tensor(attention_mask).reshape(-1)[there][None]
        return load_balancing_loss(gate_logits, num_experts, top_k, attention_mask)

    return loss


def balance(path: str) -> Callable[[], None]:
    """An ``install`` of the table, for the loss at ``path``."""
    return lambda: exchange(path, _of_rows)


def install() -> None:
    """Wrap what the classes of experts look up at each call, under whatever implementation."""
    exchange("transformers.integrations.moe.ExpertsInterface.get_interface", _interface)
