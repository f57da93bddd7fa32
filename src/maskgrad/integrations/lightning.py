"""Lightning: automatic optimization, with an accumulator instead of its division by micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.documents.aggregation import How, checked_how
from maskgrad.gradients import GradientAccumulator, clip_grad_norm_, clip_grad_value_
from maskgrad.gradients.accumulated_losses import parts_of

__all__ = ["LightningMixin"]

_FORGOTTEN = (
    "{name}.training_step did not return self.losses(...), so it is not known how many entries its loss averages: "
    "use return self.losses(losses) with reduction='none', or return self.losses(mean, count=n)"
)


class LightningMixin:
    """Mixin for ``LightningModule``: gradients are means over all losses of all micro-batches and ranks.

    ``training_step`` returns ``self.losses(losses)``. Lightning's loop is used with ``accumulate_grad_batches``,
    clipping (also of sparse gradients), precision plugins and DDP.

    Attributes:
        mean: a name of :func:`maskgrad.aggregate`, as in :class:`maskgrad.GradientAccumulator`; a class attribute.
        constant: that of ``"seq-mean-token-sum-norm"``; a class attribute.

    Example:
        >>> # class Net(mg.integrations.LightningMixin, lightning.LightningModule):
        >>> #     def training_step(self, batch, batch_idx):
        >>> #         x, y = batch
        >>> #         losses = F.cross_entropy(self(x), mg.masked(y, y != -100), reduction="none")
            >>> #         return self.losses(losses)

    Source: https://lightning.ai/docs/pytorch/stable/common/optimization.html
    """

    mean: How = "token-mean"
    constant: float | None = None
    _accumulator: GradientAccumulator | None = None
    _registered: tuple[Any, Any, dict[str, Any]] | None = None

    def losses(self, losses: Any, count: Any = None, **options: Any) -> Tensor:
        """Register the losses of a micro-batch; ``training_step`` must return the result.

        Args:
            losses: unreduced losses, or a mean and ``count``; see :meth:`maskgrad.GradientAccumulator.backward`, which
                is called with the same arguments.
            count: the number of entries of plain losses.
            options: ``mask``, ``documents``, ``weights``.

        Returns:
            The mean loss of the micro-batch, shape (); its gradient is not used.
        """
        given = (options.get(name) for name in ("mask", "weights", "documents"))
        how = checked_how(self.mean, self.constant, "mean", f"{type(self).__name__}({{}})")
        parts = parts_of(losses, count, *given, how=how, constant=self.constant)
        self._registered = losses, count, options
        shown: Any = 0
        for _, weight, part in parts:
            if part is not None and part.number:
                shown = shown + part.total.detach() * (part.times * weight / part.number)
        found = shown if isinstance(shown, Tensor) else torch.zeros((), device=self.device)  # type: ignore[attr-defined]
        return found.detach().requires_grad_()

    # what Lightning calls

    def on_train_start(self) -> None:
        """Create the accumulator, before the first forward pass."""
        super().on_train_start()  # type: ignore[misc]
        trainer: Any = self.trainer  # type: ignore[attr-defined]
        if not self.automatic_optimization:  # type: ignore[attr-defined]
            raise RuntimeError(
                f"{type(self).__name__} has automatic_optimization=False: use "
                "mg.GradientAccumulator(self.trainer.model) in its training_step instead of LightningMixin"
            )
        strategy = trainer.strategy
        if strategy.handles_gradient_accumulation:
            raise RuntimeError(
                f"{type(strategy).__name__} accumulates gradients by itself; use strategy='ddp', or one device"
            )
        scaler = getattr(strategy.precision_plugin, "scaler", None)
        self._accumulator = GradientAccumulator(
            strategy.model, scaler=scaler, mean=self.mean, constant=self.constant
        )

    def on_train_end(self) -> None:
        """Delete the accumulator."""
        super().on_train_end()  # type: ignore[misc]
        self._accumulator = self._registered = None

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Run the backward pass of the losses registered by :meth:`losses`."""
        registered, self._registered = self._registered, None
        if registered is None:
            raise RuntimeError(_FORGOTTEN.format(name=type(self).__name__))
        if self._accumulator is None:
            raise RuntimeError(
                f"{type(self).__name__}.on_train_start is overridden: call super().on_train_start() in it"
            )
        losses, count, options = registered
        self._accumulator.backward(losses, count, **options)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Divide gradients after the last micro-batch, before they are unscaled and clipped."""

        def closure() -> Any:
            found = None if optimizer_closure is None else optimizer_closure()
            if self._accumulator is not None:
                self._accumulator.finish()
            return found

        super().optimizer_step(epoch, batch_idx, optimizer, closure)  # type: ignore[misc]

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip sparse gradients together with dense ones."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        sparse = any(param.grad is not None and param.grad.layout != torch.strided for param in params)
        if not sparse or not gradient_clip_val:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)  # type: ignore[misc]
        elif str(getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm)) == "value":
            clip_grad_value_(params, gradient_clip_val)
        else:
            clip_grad_norm_(params, gradient_clip_val)
