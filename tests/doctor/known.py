"""What the doctor does not do yet: the tests hold it to these lists."""

from __future__ import annotations

__all__ = ["COMMAND", "FORMS", "KNOWN"]

#: by program of the corpus "scripts", how it is misjudged
KNOWN: dict[str, tuple[str, ...]] = {
    "channels_first.mean_over_frames": ("examine wrong", "watch wrong", "watch right"),
    "channels_first.statistics_of_frames": ("examine wrong", "watch wrong", "watch right"),
    "channels_first.second_convolution_reads_the_bias_of_padding": (
        "examine wrong",
        "watch wrong",
        "watch right",
    ),
    "channels_first.batch_norm_over_frames": ("examine wrong", "examine right", "watch wrong", "watch right"),
    "channels_first.strongest_frame": ("examine wrong", "watch wrong", "watch right"),
    "channels_first.reconstruction_of_padded_frames": ("examine wrong", "watch wrong", "watch right"),
    "channels_first.ctc_of_padded_frames": ("examine wrong", "examine right", "watch wrong", "watch right"),
    "channels_first.attention_over_frames_without_a_mask": ("examine wrong", "watch wrong", "watch right"),
    "encoder_decoder.second_table_has_padding_of_its_own": ("watch wrong",),
    "encoder_decoder.teacher_is_read_as_a_slice": ("examine wrong", "watch wrong"),
    "encoder_decoder.decoder_that_sees_its_future": ("examine wrong", "watch wrong"),
    "images.pixels_pooled_under_a_mask_of_padding": ("examine right", "watch right"),
    "images.patches_attend_to_padding": ("examine wrong", "examine right", "watch wrong", "watch right"),
    "images.points_of_a_cloud": ("examine wrong", "watch wrong", "watch right"),
    "images.depth_of_missing_pixels": ("examine wrong", "watch wrong", "watch right"),
    "losses.flat_logits_see_the_next_token": ("examine wrong", "watch wrong"),
    "losses.ids_of_numpy_see_the_next_token": ("examine wrong", "examine right", "watch wrong"),
    "losses.selected_by_assistant_masks": ("examine right", "watch right"),
    "losses.selected_by_response_mask": ("examine right", "watch right"),
    "losses.selected_by_trainable": ("examine wrong",),
    "losses.selected_by_special_tokens_mask": ("examine right", "watch right"),
    "losses.selected_by_prompt_mask": ("examine right", "watch right"),
    "losses.held_out_targets_have_a_mask_of_their_own": (
        "examine wrong",
        "examine right",
        "watch wrong",
        "watch right",
    ),
    "masks.extended_mask_and_a_mean": ("examine wrong", "watch wrong", "watch right"),
    "masks.additive_mask_forgotten": ("examine wrong", "watch wrong", "watch right"),
    "masks.additive_rows_of_minus_infinity": ("examine wrong", "watch wrong", "watch right"),
    "masks.mask_of_columns": ("examine wrong", "watch wrong", "watch right"),
    "masks.true_in_the_padding": ("examine right", "watch right"),
    "masks.is_pad": ("examine wrong", "watch wrong", "watch right"),
    "masks.actions_beyond_the_end": ("examine wrong", "watch wrong", "watch right"),
    "masks.valid_steps_of_agents": ("examine wrong", "watch wrong", "watch right"),
    "masks.observed_entries_of_a_series": ("examine wrong", "watch wrong", "watch right"),
    "masks.lengths_in_a_list": ("examine right",),
    "masks.lengths_in_an_array": ("examine wrong", "examine right", "watch wrong", "watch right"),
    "packed.positions_counted_on": ("examine wrong",),
    "time_first.last_state_of_an_lstm": ("examine wrong", "watch wrong", "watch right"),
    "time_first.outputs_of_a_gru_summed": ("examine wrong", "examine right", "watch wrong", "watch right"),
    "time_first.encoder_layer_without_its_mask": (
        "examine wrong",
        "examine right",
        "watch wrong",
        "watch right",
    ),
    "time_first.encoder_layer_with_its_mask_and_a_mean": (
        "examine wrong",
        "examine right",
        "watch wrong",
        "watch right",
    ),
    "time_first.future_of_a_transformer": ("examine wrong", "examine right", "watch wrong"),
    "time_first.future_of_a_bidirectional_lstm": ("examine wrong", "examine right", "watch wrong"),
    "training.one_caller_of_a_shared_module_forgets_the_mask": ("watch wrong",),
}

#: programs of ``forms.py`` that are missed, alarms, or found at another line
FORMS: tuple[str, ...] = (
    "ids | time first | left | meaningless | wrong",
    "ids | pairs | left | telling | wrong",
    "ids time first | true in the padding | left | meaningless | right",
    "ids time first | minus infinity | left | meaningless | wrong",
    "ids time first | (B, 1, T) | left | telling | right",
    "ids time first | (B, T, 1) | left | telling | wrong",
    "ids time first | array of lengths | right | meaningless | right",
    "series | one in the padding | left | meaningless | wrong",
    "series | time first | left | telling | right",
    "series | (B, 1, 1, T), minus infinity | left | telling | wrong",
    "features | true in the padding | left | meaningless | wrong",
    "features | (B, 1, T) | left | telling | wrong",
    "features | array of lengths | right | meaningless | wrong",
    "features time first | one in the padding | left | telling | right",
    "features time first | (B, 1, 1, T), minus infinity | right | meaningless | right",
    "features time first | pairs | right | meaningless | wrong",
    "channels first | minus infinity | left | telling | wrong",
    "channels first | (B, T, 1) | right | meaningless | wrong",
    "channels first | array of lengths | right | telling | right",
    "images | one in the padding | left | telling | wrong",
)

#: programs that the command misjudges
COMMAND: tuple[str, ...] = (
    "losses.held_out_targets_have_a_mask_of_their_own",
    "losses.ids_of_numpy_see_the_next_token",
    "losses.selected_by_special_tokens_mask",
    "time_first.future_of_a_transformer",
    "time_first.encoder_layer_with_its_mask_and_a_mean",
    "masks.true_in_the_padding",
    "masks.extended_mask_and_a_mean",
    "masks.additive_rows_of_minus_infinity",
    "masks.mask_of_columns",
    "encoder_decoder.second_table_has_padding_of_its_own",
    "encoder_decoder.teacher_is_read_as_a_slice",
)
