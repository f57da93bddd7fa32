"""skorch: training on masked targets, in micro-batches, with epoch means over entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients import GradientAccumulator
from maskgrad.integrations.integration import Integration, refusals
from maskgrad.integrations.mean_losses import mean_and_number
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["INTEGRATION", "SkorchMixin"]


class SkorchMixin:
    """Mixin for nets of skorch: masked data, micro-batches, and epoch losses that are means over entries.

    The criterion is one of PyTorch's, with ``criterion__reduction="none"``. Inputs and targets are MaskedTensors of any
    layout, or plain tensors, whose entries all count. Callbacks that clip gradients are called once per step, when
    gradients are complete. The mean of an epoch without targets is NaN.

    Attributes:
        accumulate_batches: number of batches of a step; the last step of an epoch has the remaining ones. A class
            attribute.

    Raises:
        ValueError: the criterion reduces, or an array of predictions would have unspecified entries.

    Example:
        >>> # class Net(mg.integrations.SkorchMixin, skorch.NeuralNetRegressor):
        >>> #     accumulate_batches = 4
        >>> # Net(Module, criterion=nn.MSELoss, criterion__reduction="none").fit(dataset, y=None)

    Source: https://skorch.readthedocs.io/en/stable/user/FAQ.html
    """

    accumulate_batches: int = 1
    _accumulator: GradientAccumulator | None = None
    _waiting = 0
    _losses: Any = None
    _number = 0

    def infer(self, x: Any, **fit_params: Any) -> Any:
        """Return the module's output for a batch, which may contain MaskedTensors."""
        return super().infer(_prepared(x, self.device), **fit_params)  # type: ignore[misc, attr-defined]

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the mean over entries, for the history; 0 if there are none."""
        y_true = _prepared(y_true, self.device)  # type: ignore[attr-defined]
        self._losses = super().get_loss(y_pred, y_true, *args, **kwargs)  # type: ignore[misc]
        if not self._losses.ndim:
            raise ValueError(
                "SkorchMixin: the criterion reduces, so the number of its entries is unknown; pass to the net "
                'criterion__reduction="none"'
            )
        mean, self._number = mean_and_number(self._losses, self._losses.numel())
        return mean

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Run the forward and backward pass of a batch."""
        self._set_training(True)  # type: ignore[attr-defined]
        x, y = batch
        y_pred = self.infer(x, **fit_params)
        loss = self.get_loss(y_pred, y, X=x, training=True)
        if self._accumulator is None:
            params = [param for _, param in self.get_all_learnable_params()]  # type: ignore[attr-defined]
            self._accumulator = GradientAccumulator(params)
        losses, self._losses = self._losses, None
        self._accumulator.backward(losses, None if isinstance(losses, MaskedTensor) else losses.numel())
        return {"loss": loss, "y_pred": y_pred}

    def train_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """Run the forward and backward pass, and a step after its last batch."""
        if not self._waiting:
            self._zero_grad_optimizer()  # type: ignore[attr-defined]
        step = self.train_step_single(batch, **fit_params)
        self._waiting += 1
        if self._waiting >= self.accumulate_batches:
            self._finish(batch)
        return step

    def run_single_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Run an epoch, and a step for the remaining batches."""
        super().run_single_epoch(*args, **kwargs)  # type: ignore[misc]
        if self._waiting:
            self._finish(None)
        self._accumulator = self._losses = None  # nets are pickled

    def on_batch_end(self, net: Any, *args: Any, training: bool = False, **kwargs: Any) -> None:
        """Weight a batch by its entries in the epoch's mean."""
        super().on_batch_end(net, *args, training=training, **kwargs)  # type: ignore[misc]
        self.history.record_batch(f"{'train' if training else 'valid'}_batch_size", self._number)  # type: ignore[attr-defined]

    def on_epoch_end(self, net: Any, *args: Any, **kwargs: Any) -> None:
        """Set an empty mean to NaN, where skorch would divide by zero."""
        for kind in ("train", "valid"):
            seen = [row for row in self.history[-1]["batches"] if f"{kind}_batch_size" in row]  # type: ignore[attr-defined]
            if seen and not any(row[f"{kind}_batch_size"] for row in seen):
                seen[-1] |= {f"{kind}_batch_size": 1, f"{kind}_loss": float("nan")}
        super().on_epoch_end(net, *args, **kwargs)  # type: ignore[misc]

    def _get_predict_nonlinearity(self) -> Any:
        after = super()._get_predict_nonlinearity()  # type: ignore[misc]
        return lambda y_pred: after(_whole(y_pred))

    def _finish(self, batch: Any) -> None:
        assert self._accumulator is not None
        self._accumulator.finish()
        self._waiting = 0
        named = list(self.get_all_learnable_params())  # type: ignore[attr-defined]
        self.notify("on_grad_computed", named_parameters=named, batch=batch, training=True)  # type: ignore[attr-defined]
        with torch.no_grad():
            self._step_optimizer(None)  # type: ignore[attr-defined]


def _prepared(data: Any, device: Any) -> Any:
    """Return a batch whose MaskedTensors skorch does not convert."""
    if isinstance(data, MaskedTensor):
        return _Unconverted(data.to(device))
    if type(data) is dict:
        return {name: _prepared(part, device) for name, part in data.items()}
    if type(data) in (list, tuple):
        return type(data)(_prepared(part, device) for part in data)
    return data


def _whole(y_pred: Any) -> Any:
    """Return predictions for an array, which must be fully specified."""
    if not isinstance(y_pred, MaskedTensor):
        return y_pred
    if not bool(y_pred.mask.all()):
        raise ValueError(
            "SkorchMixin: some predictions are unspecified, and an array has no place for entries that are "
            "unspecified; net.forward(X) returns MaskedTensors"
        )
    return y_pred.filled(False)


class _Unconverted:
    """Mimics an encoding of a tokenizer, which skorch lets convert itself to tensors."""

    def __init__(self, given: MaskedTensor) -> None:
        self._given = given

    def convert_to_tensors(self, _: str) -> MaskedTensor:
        return self._given


INTEGRATION = Integration(
    "skorch",
    without="raises",
    patches=(
        *refusals(
            "skorch.utils:to_tensor",
            "skorch converts arrays and plain tensors",
            "Write class Net(mg.integrations.SkorchMixin, skorch.NeuralNet), or net.module_(x) for a prediction.",
            "test_skorch.py::test_nets_without_the_mixin_refuse",
        ),
    ),
)
