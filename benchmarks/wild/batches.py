"""Samples of unequal length, and how they become a batch: padded on the left or right, wider than needed, or alone."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.wild.architectures import VOCABULARY, NothingToPadError

__all__ = ["Samples", "samples_for"]

LENGTHS = (12, 9, 5)
#: tensors that have one entry for each token
TOKENS = ("position_ids", "token_type_ids", "langs")


@dataclass(frozen=True)
class Samples:
    """Samples without padding.

    Attributes:
        rows: the tensors of each sample by key.
        padding: which of them have an axis of positions, and what is written beyond the end of shorter ones.
        mask: key of the mask of real positions; None if the batch has none.
        axis: that of the positions in a sample.
        holes: key of a mask of observed values, in series of equal length, which have no padding.
    """

    rows: list[dict[str, Tensor]]
    padding: dict[str, Any]
    mask: str | None = "attention_mask"
    axis: int = 0
    holes: str | None = None

    def real(self, side: str = "right", more: int = 0) -> Tensor:
        """The mask of a batch, True = real."""
        key = next(iter(self.padding))
        sizes = [row[key].shape[self.axis] for row in self.rows]
        places = torch.arange(max(sizes) + more)
        mask = places < torch.tensor(sizes)[:, None]
        mask = mask.flip(1) if side == "left" else mask
        if self.axis:  # images: height, and the width that is padded
            mask = mask[:, None, :].expand(-1, self.rows[0][key].shape[1], -1).contiguous()
        return mask

    def batch(self, side: str = "right", more: int = 0) -> dict[str, Tensor]:
        """All samples, padded to the longest and ``more`` columns."""
        made = {}
        for key in self.rows[0]:
            held = [row[key] for row in self.rows]
            if key in self.padding:
                own = side if key != "labels" or self._has_a_label_for_each_position() else "right"
                longest = max(tensor.shape[self.axis] for tensor in held)
                more_here = (
                    more
                    if longest == max(row[next(iter(self.padding))].shape[self.axis] for row in self.rows)
                    else 0
                )
                held = [
                    _padded(tensor, longest + more_here, self.axis, own, self.padding[key]) for tensor in held
                ]
            made[key] = torch.stack(held)
        if self.mask is not None:
            made[self.mask] = self.real(side, more).long()
        return made

    def _has_a_label_for_each_position(self) -> bool:
        key = next(iter(self.padding))
        return all(row["labels"].shape[:1] == row[key].shape[:1] for row in self.rows)

    def hidden(self, batch: dict[str, Tensor], side: str) -> dict[str, Tensor]:
        """Where each tensor that the model reads is real, in its shape; without those that are so everywhere."""
        if self.holes is not None:
            return {"past_values": batch[self.holes].bool()}
        real = self.real(side)
        found = {}
        for key in self.padding.keys() - {"labels"}:
            shape = batch[key].shape
            mask = real[:, None] if self.axis else real.reshape(*real.shape, *[1] * (len(shape) - 2))
            found[key] = mask.expand(shape)
        return found

    def more(self) -> int:
        """Columns of padding to add: a third of the longest sample."""
        key = next(iter(self.padding))
        return max(row[key].shape[self.axis] for row in self.rows) // 3

    def alone(self, row: int) -> Samples:
        """One sample."""
        return Samples([self.rows[row]], self.padding, self.mask, self.axis)


def _padded(tensor: Tensor, size: int, axis: int, side: str, value: float) -> Tensor:
    shape = list(tensor.shape)
    shape[axis] = size - shape[axis]
    beyond = torch.full(shape, value, dtype=tensor.dtype)
    return torch.cat([beyond, tensor] if side == "left" else [tensor, beyond], axis)


def samples_for(model: nn.Module) -> Samples:
    """What a model of transformers takes, told by its signature.

    Raises:
        NothingToPadError: it takes nothing that could be padded.
    """
    takes = inspect.signature(model.forward).parameters
    main, config = model.main_input_name, model.config
    generator = torch.Generator().manual_seed(1)
    if "pixel_mask" in takes and main == "pixel_values":
        return _images(generator)
    if "past_observed_mask" in takes:
        return _series(config, takes, generator)
    if "attention_mask" not in takes:
        raise NothingToPadError(f"no mask among {', '.join(takes)}")
    if main == "input_values" and "input_ids" not in takes:
        made = [{"input_values": torch.randn(size, generator=generator)} for size in (400, 300, 180)]
        return _labelled(model, Samples(made, {"input_values": 0.0}), generator)
    if main == "input_features" and "input_ids" not in takes:
        width = next(
            int(size)
            for name in (
                "num_mel_bins",
                "input_feat_per_channel",
                "feature_projection_input_dim",
                "input_dim",
                "feature_size",
            )
            if (
                size := getattr(getattr(config, "encoder_config", config), name, None)
                or getattr(config, name, None)
            )
        )
        made = [{"input_features": torch.randn(size, width, generator=generator)} for size in (64, 48, 28)]
        return _labelled(model, Samples(made, {"input_features": 0.0}), generator)
    if "input_ids" in takes:
        made = [{"input_ids": _ids(size, generator)} for size in LENGTHS]
        for key in ("bbox",):
            if key in takes:
                for row in made:
                    row[key] = (
                        torch.randint(0, 8, (len(row["input_ids"]), 4), generator=generator).sort(-1).values
                    )
        padding = {"input_ids": _pad_id(config)} | dict.fromkeys(
            [key for key in ("bbox",) if key in takes], 0
        )
        return _labelled(model, Samples(made, padding), generator)
    raise NothingToPadError(f"the input is {main}")


def _ids(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(3, VOCABULARY - 16, (size,), generator=generator)


def _pad_id(config: Any) -> int:
    for held in (config, getattr(config, "text_config", None)):
        found = getattr(held, "pad_token_id", None)
        if isinstance(found, int) and found >= 0:
            return found
    return 0


def _labelled(model: nn.Module, samples: Samples, generator: torch.Generator) -> Samples:
    """The samples with labels, of the kind that the head of the model takes."""
    config: Any = model.config
    name, takes = type(model).__name__, inspect.signature(model.forward).parameters
    rows, padding = [dict(row) for row in samples.rows], dict(samples.padding)
    first = next(iter(padding))
    if "labels" in takes:
        for number, row in enumerate(rows):
            if name.endswith(("SequenceClassification", "AudioClassification")):
                row["labels"] = torch.tensor(number % 2)
                if config.is_encoder_decoder and first == "input_ids":  # the token whose state is read
                    row[first] = torch.cat([row[first][:-1], torch.tensor([config.eos_token_id])])
            elif name.endswith("TokenClassification"):
                row["labels"] = row[first] % 2
            elif first != "input_ids" or config.is_encoder_decoder:
                row["labels"] = _ids((6, 4, 3)[number], generator)
            elif name.endswith(("LM", "LMHeadModel", "LMHead", "Generation")):
                row["labels"] = _ids(len(row[first]), generator)
                row["labels"][0] = -100  # left padding would have to predict it
    elif "decoder_input_ids" in takes:
        for row in rows:
            row["decoder_input_ids"] = _ids(6, generator)
    if all("labels" in row and row["labels"].ndim for row in rows):
        padding["labels"] = -100
    if "start_positions" in takes and "labels" not in takes:
        for row in rows:
            row["start_positions"], row["end_positions"] = torch.tensor(1), torch.tensor(3)
    return Samples(rows, padding, samples.mask)


def _images(generator: torch.Generator) -> Samples:
    made = [{"pixel_values": torch.randn(3, 64, size, generator=generator)} for size in (96, 64, 64)]
    return Samples(made, {"pixel_values": 0.0}, "pixel_mask", axis=-1)


def _series(config: Any, takes: Any, generator: torch.Generator) -> Samples:
    """Values of which some were not observed: there are holes, and no padding."""
    channels = getattr(config, "num_input_channels", None)
    if channels is not None:
        size = config.context_length
        made = [{"past_values": torch.randn(size, channels, generator=generator)} for _ in range(3)]
        future: dict[str, tuple[Any, ...]] = {"future_values": (config.prediction_length, channels)}
    else:
        size = config.context_length + max(config.lags_sequence)
        made = [{"past_values": torch.randn(size, generator=generator)} for _ in range(3)]
        for row in made:
            row["past_time_features"] = torch.randn(size, config.num_time_features, generator=generator)
            row["future_time_features"] = torch.randn(
                config.prediction_length, config.num_time_features, generator=generator
            )
        future = {"future_values": (config.prediction_length,)}
    for row in made:
        row |= {key: torch.randn(shape, generator=generator) for key, shape in future.items() if key in takes}
        row["past_observed_mask"] = torch.rand(row["past_values"].shape, generator=generator) > 0.25
    return Samples(made, {}, None, holes="past_observed_mask")
