"""Hugging Face's Trainer: its loop and models, with the number of labels of a whole step as the denominator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients import clip_grad_norm_
from maskgrad.gradients import grad_norm as gradient_norm  # the Trainer has an argument of that name
from maskgrad.integrations.transformers.collation import plain_tokens
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked

__all__ = ["TrainerMixin"]

IGNORED = -100
#: Models of transformers whose loss is the mean over ``labels`` that are not ignored end in one of these.
MEANS = (
    "ForAudioClassification", "ForCausalLM", "ForConditionalGeneration", "ForImageClassification", "ForMaskedLM",
    "ForMultipleChoice", "ForNextSentencePrediction", "ForSequenceClassification", "ForTokenClassification",
    "LMHeadModel", "LMHead",
)  # fmt: skip
_UNKNOWN = (
    "TrainerMixin: {found}, so it is not known how many entries its loss averages; override "
    "count_labels(self, inputs) in your Trainer"
)


class TrainerMixin:
    """Mixin for ``transformers.Trainer``: the gradient of a step is the mean over all of its labels.

    The Trainer passes its count only to models whose loss function takes it; the losses of others are means of
    micro-batches, which are averaged or added. Here every model returns its mean, which is weighted by the
    micro-batch's fraction of the labels of the step, on all ranks. A micro-batch without labels contributes nothing.
    ``eval_loss`` is the mean over all labels of the evaluation set. Sparse gradients are clipped with the others.

    Batches may contain MaskedTensors (see :class:`maskgrad.integrations.TokenCollator`): models of transformers get
    them padded, with an attention mask; others get them unchanged. A model, or ``compute_loss_func``, may return masked
    unreduced losses.

    Override :meth:`count_labels` if the loss is not a mean over the entries of ``labels``.

    Raises:
        ValueError: the number of labels of a batch is unknown.
        RuntimeError: the Trainer splits batches (``n_gpu`` > 1 in one process) or sequences (context, sequence, tensor
            parallelism).

    Example:
        >>> # class Trainer(mg.integrations.TrainerMixin, transformers.Trainer):
        >>> #     pass

    Source: https://huggingface.co/docs/transformers/main_classes/trainer and transformers issue 34242.
    """

    _weighed: list[tuple[float, int]] | None = None
    #: Micro-batches of a step by id, and the number of their labels.
    _counted: dict[int, tuple[Any, int]] | None = None
    _total: tuple[Tensor, int] | None = None
    _number: int | None = None
    _checked_ranks = False

    def count_labels(self, inputs: dict[str, Any]) -> int:
        """Return the number of entries that the loss of a batch averages.

        By default the specified entries of ``labels`` that are not -100, without the first position of each sequence
        for models that shift them; 0 if the batch contains nothing of ``label_names``.
        """
        labels = inputs.get("shift_labels", inputs.get("labels"))
        there = [name for name in self.label_names if inputs.get(name) is not None]  # type: ignore[attr-defined]
        if len(there) > (labels is not None) or inputs.get("return_loss"):
            raise ValueError(_UNKNOWN.format(found=f"a batch has {' and '.join(there) or 'return_loss'}"))
        if labels is None:
            return 0
        if not self._loss_is_mean():
            name = type(_bare(self.model)).__name__  # type: ignore[attr-defined]
            raise ValueError(_UNKNOWN.format(found=f"the model is a {name}"))
        if "shift_labels" not in inputs and self._shifts():
            labels = labels[..., 1:]
        if not isinstance(labels, (Tensor, MaskedTensor)):
            raise ValueError(_UNKNOWN.format(found=f"labels are a {type(labels).__name__}"))
        known = labels if labels.dtype.is_floating_point else labels != IGNORED
        if isinstance(known, MaskedTensor):
            return int(known.num_specified() if known.dtype.is_floating_point else known.sum())
        return int(known.sum()) if known.dtype is torch.bool else known.numel()

    # what the Trainer calls

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, *args: Any
    ) -> tuple[list[Any], Any]:
        """Return the micro-batches of a step, and the number of their labels on all ranks."""
        if not self._checked_ranks:
            self._check_ranks()
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, *args)  # type: ignore[misc]
        self._counted = {id(sample): (sample, self.count_labels(sample)) for sample in samples}
        number = sum(self._counted[id(sample)][1] for sample in samples)
        total = torch.tensor(number, device=self.args.device)  # type: ignore[attr-defined]
        if self.accelerator.num_processes > 1:  # type: ignore[attr-defined]
            total = self.accelerator.reduce(total)  # type: ignore[attr-defined]
            number = int(total)
        self._total = total, max(number, 1)
        # The Trainer does not divide if the model takes a count, and there is one.
        self.model_accepts_loss_kwargs = True
        return samples, total

    def _get_num_items_in_batch(self, *_: Any) -> None:
        """None: labels were counted already."""

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run the forward and backward pass of a micro-batch, whose labels were counted already."""
        counted = (self._counted or {}).get(id(inputs))
        self._number = None if counted is None else counted[1]
        try:
            return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._number = None

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the contribution of a micro-batch to the mean of the step; its own mean in evaluation."""
        training = model.training and num_items_in_batch is not None
        number = self._number if training and self._number is not None else self.count_labels(inputs)
        whole = dict(inputs) if self._weighed is not None else {}
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)  # type: ignore[misc]
        ranks = self.accelerator.num_processes  # type: ignore[attr-defined]
        if isinstance(loss, MaskedTensor):
            loss = _summed(loss, number) / max(number, 1)
        if not number:
            loss = _nothing(loss, outputs, ranks)
        if training:
            known = self._total is not None and num_items_in_batch is self._total[0]
            total = self._total[1] if known else num_items_in_batch.clamp(min=1)  # type: ignore[index]
            loss = loss * (number * ranks / total)  # DistributedDataParallel averages over ranks
        elif self._weighed is not None:
            self._weighed.append(self._without_repeats(model, whole, loss, number))
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, with the mean over all labels as loss."""
        self._weighed = []
        found = super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]
        weighed, self._weighed = self._weighed, None
        key = next((name for name in found.metrics if name.endswith("_loss")), None)
        if key is not None and weighed:
            total = sum(loss * number for loss, number in weighed if number)
            both = torch.tensor([total, float(sum(n for _, n in weighed))], dtype=torch.float64)
            if self.accelerator.num_processes > 1:  # type: ignore[attr-defined]
                both = self.accelerator.reduce(both.to(self.args.device))  # type: ignore[attr-defined]
            found.metrics[key] = float(both[0] / both[1])
        return found

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return loss, predictions and labels of a batch; unspecified labels are -100, unspecified scores NaN."""
        found = super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        shown = inputs.get(name := getattr(self.model, "main_input_name", "input_ids"))  # type: ignore[attr-defined]
        if isinstance(shown, MaskedTensor):  # for metrics, by include_for_metrics
            inputs[name] = shown.filled(self._padding())
        return tuple(map(_padded, found))

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        found = super()._prepare_inputs(inputs)  # type: ignore[misc]
        if not holds_masked(dict(found)):
            return found  # type: ignore[no-any-return]
        found = _moved(found, self.args.device)  # type: ignore[attr-defined]
        bare = _bare(self.model)  # type: ignore[attr-defined]
        if not _is_of_transformers(bare):
            return found  # type: ignore[no-any-return]
        keep = ("labels",) if self.compute_loss_func is not None else ()  # type: ignore[attr-defined]
        return plain_tokens(found, self._padding(), keep)

    def _padding(self) -> int:
        config = getattr(_bare(self.model), "config", None)  # type: ignore[attr-defined]
        return getattr(config, "pad_token_id", None) or 0

    def _clip_grad_norm(self, model: Any) -> Any:
        if not self._has_sparse():
            return super()._clip_grad_norm(model)  # type: ignore[misc]
        self.accelerator.unscale_gradients()  # type: ignore[attr-defined]
        return clip_grad_norm_(model.parameters(), self.args.max_grad_norm)  # type: ignore[attr-defined]

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        if grad_norm is None and self._has_sparse():
            self.accelerator.unscale_gradients()  # type: ignore[attr-defined]
            return gradient_norm(model.parameters())
        return super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[misc]

    def _has_sparse(self) -> bool:
        params = (param for group in self.optimizer.param_groups for param in group["params"])  # type: ignore[attr-defined]
        return any(param.grad is not None and param.grad.layout != torch.strided for param in params)

    def _without_repeats(
        self, model: Any, inputs: dict[str, Any], loss: Tensor, number: int
    ) -> tuple[float, int]:
        """The loss and its number of labels, without the samples that pad the last batch of a rank."""
        state, own = self.accelerator.gradient_state, len(next(iter(inputs.values())))  # type: ignore[attr-defined]
        ranks = self.accelerator.num_processes  # type: ignore[attr-defined]
        if ranks > 1 and state.end_of_dataloader and state.remainder > 0:
            real = state.remainder - self.accelerator.process_index * own  # type: ignore[attr-defined]
            if real < own:
                first = {
                    name: part[: max(real, 0)] if hasattr(part, "ndim") else part
                    for name, part in inputs.items()
                }
                number = self.count_labels(first) if real > 0 else 0
                if number:
                    loss = super().compute_loss(model, first)  # type: ignore[misc]
        if isinstance(loss, MaskedTensor):
            loss = _summed(loss, number) / max(number, 1)
        return float(loss.detach()), number

    def _loss_is_mean(self) -> bool:
        """Return whether the loss is known to be a mean; assumed for models that are not from transformers."""
        bare = _bare(self.model)  # type: ignore[attr-defined]
        if self.compute_loss_func is not None or not _is_of_transformers(bare):  # type: ignore[attr-defined]
            return True
        return type(bare).__name__.endswith(MEANS)

    def _shifts(self) -> bool:
        """Return whether the model compares position i with label i + 1; the Trainer tells since transformers 5."""
        known = getattr(self, "_loss_shifts_labels", None)
        if known is not None:
            return bool(known)
        return type(_bare(self.model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))  # type: ignore[attr-defined]

    def _check_ranks(self) -> None:
        args: Any = self.args  # type: ignore[attr-defined]
        if args.n_gpu > 1:
            raise RuntimeError(
                f"TrainerMixin: one process with {args.n_gpu} GPUs averages over parts of batches; start one process "
                "for each GPU with torchrun, or set CUDA_VISIBLE_DEVICES=0"
            )
        parallel = [name for name in ("tp", "cp", "sp") if getattr(self, f"get_{name}_size", int)() > 1]
        if parallel:
            raise RuntimeError(
                f"TrainerMixin: labels of a batch are on several ranks ({', '.join(parallel)} parallelism), which is "
                "not supported; use your own loop with mg.GradientAccumulator"
            )
        self._checked_ranks = True


def _bare(model: Any) -> Any:
    """The model inside of PEFT's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _is_of_transformers(model: Any) -> bool:
    return hasattr(getattr(model, "config", None), "model_type")


def _moved(data: Any, device: Any) -> Any:
    """``data`` with its MaskedTensors on a device, at any depth; the Trainer has moved the rest."""
    if isinstance(data, MaskedTensor):
        return data.to(device)
    if isinstance(data, Mapping):
        return type(data)({name: _moved(part, device) for name, part in data.items()})  # type: ignore[call-arg]
    return type(data)(_moved(part, device) for part in data) if isinstance(data, (tuple, list)) else data


def _summed(losses: MaskedTensor, number: int) -> Tensor:
    """The sum of unreduced losses; raises a ValueError unless there are as many as labels."""
    found = int(losses.num_specified())
    if found != number:
        raise ValueError(
            f"TrainerMixin: there are {found} losses and {number} labels, but the sum of the losses is divided by the "
            "number of labels; override count_labels(self, inputs) so that both are equal"
        )
    return losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32))


def _nothing(loss: Any, outputs: Any, ranks: int) -> Tensor:
    """Zero, with zero gradients: an empty mean may be NaN, and other ranks wait for gradients."""
    zero = torch.zeros((), device=loss.device)
    if ranks == 1 or not torch.is_grad_enabled():
        return zero.requires_grad_()
    values = (
        [x for name, x in outputs.items() if name != "loss"] if isinstance(outputs, dict) else outputs[1:]
    )
    plain = [x.filled(0) if isinstance(x, MaskedTensor) else x for x in values]
    found = [x for x in plain if isinstance(x, Tensor) and x.requires_grad] or [loss]
    return sum((torch.where(torch.zeros_like(x, dtype=torch.bool), x, 0).sum() for x in found), zero)


def _padded(found: Any) -> Any:
    """Unspecified entries as -100, or NaN, as the Trainer expects them."""
    if isinstance(found, (tuple, list)):
        return tuple(map(_padded, found))
    if not isinstance(found, MaskedTensor):
        return found
    return found.filled(float("nan") if found.dtype.is_floating_point else IGNORED)
