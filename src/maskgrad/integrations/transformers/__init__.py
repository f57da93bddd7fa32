"""transformers: errors of experts and where states end in padding, the Trainer and a collator of tokens."""

from __future__ import annotations

from maskgrad.integrations.integration import Integration, refusals
from maskgrad.integrations.transformers.collation import TokenCollator
from maskgrad.integrations.transformers.experts import EXPERTS
from maskgrad.integrations.transformers.trainer import TrainerMixin

__all__ = ["INTEGRATION", "TokenCollator", "TrainerMixin"]

_STATE = "it keeps a state of the last position, which is padding in sequences that end before"

INTEGRATION = Integration(
    "transformers",
    without="wrong in silence",
    patches=(
        EXPERTS,
        *refusals(
            "transformers.generation.utils:GenerationMixin.generate",
            "the tokens that it appends are the same for all sequences, wherever these end",
            "Pad on the left, and call generate(inputs_embeds=x.filled(0.), attention_mask=x.mask.any(-1).long()); one "
            "sequence at a time for models that read no attention mask, as RWKV.",
            "test_transformers.py::test_generating",
        ),
        *refusals(
            "transformers.cache_utils:Cache.update_conv_state transformers.cache_utils:Cache.update_recurrent_state",
            _STATE,
            "Call the model with use_cache=False.",
            "test_transformers.py::test_states",
        ),
        *refusals(
            "transformers.models.rwkv.modeling_rwkv:RwkvSelfAttention.extract_key_value",
            _STATE,
            "Call the model with use_cache=False.",
            "test_transformers.py::test_states",
            only_with="state",
        ),
        *refusals(
            "torch_default_data_collator pad_without_fast_tokenizer_warning DataCollatorWithFlattening.__call__",
            "the collators of transformers read lists of numbers",
            "Give the Trainer data_collator=mg.integrations.TokenCollator(), or a function that calls torch.stack.",
            "test_transformers_collators.py::test_collators_refuse",
            "transformers.data.data_collator:",
        ),
    ),
)
