"""PyTorch-Ignite: a training engine with one denominator per step, and errors from metrics given MaskedTensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskgrad.gradients import GradientAccumulator, clip_grad_norm_
from maskgrad.gradients.accumulated_losses import Mean
from maskgrad.integrations.guarded_metrics import HAND_ON, guarded
from maskgrad.integrations.integration import Integration
from maskgrad.integrations.mean_losses import mean_and_number
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["INTEGRATION", "ignite_training_step"]


def ignite_training_step(
    model: Any,
    optimizer: Any,
    loss_fn: Callable[[Any, Any], Any],
    *,
    gradient_accumulation_steps: int = 1,
    max_norm: float | None = None,
    scaler: Any = None,
    mean: Mean = "entry",
    prepare_batch: Callable[[Any], tuple[Any, Any]] = tuple,
    output_transform: Callable[[Any, Any, Any, Any], Any] = lambda x, y, y_pred, loss: loss.item(),  # noqa: ARG005
) -> Callable[[Any, Any], Any]:
    """Return the function of an ``ignite.engine.Engine`` that trains on masked targets, in micro-batches.

    Args:
        model: the model, which may be a DistributedDataParallel.
        optimizer: any optimizer.
        loss_fn: ``loss_fn(y_pred, y)`` returns unreduced losses, masked like the target, or a mean and its count.
        gradient_accumulation_steps: number of iterations of a step; the last step of an epoch has the remaining ones.
        max_norm: clip gradients to this norm, including sparse ones.
        scaler: a ``GradScaler``.
        mean: as in :class:`maskgrad.GradientAccumulator`.
        prepare_batch: returns ``(x, y)``, for example moved to a device.
        output_transform: maps ``(x, y, y_pred, loss)`` to the engine's output; ``loss`` is the mean of the micro-batch.

    Returns:
        ``step(engine, batch)``.

    Raises:
        ValueError: ``gradient_accumulation_steps`` is below 1.

    Dense equivalent: ``ignite.engine.supervised_training_step``, which divides by the number of iterations.

    Example:
        >>> import types
        >>> net, losses = torch.nn.Linear(1, 1), torch.nn.MSELoss(reduction="none")
        >>> step = mg.integrations.ignite_training_step(net, torch.optim.SGD(net.parameters(), lr=0.1), losses)
        >>> engine = types.SimpleNamespace(state=types.SimpleNamespace(iteration=1, epoch_length=1))  # ignite's
        >>> step(engine, (torch.ones(2, 1), mg.from_nan(torch.tensor([[1.], [float("nan")]])))) > 0
        True

    Source: https://docs.pytorch.org/ignite/generated/ignite.engine.supervised_training_step.html
    """
    if gradient_accumulation_steps < 1:
        raise ValueError(
            f"gradient_accumulation_steps must be 1 or more, found {gradient_accumulation_steps}; use 1 for none"
        )
    accumulator = GradientAccumulator(model, scaler=scaler, mean=mean)

    def step(engine: Any, batch: Any) -> Any:
        length = engine.state.epoch_length or engine.state.iteration
        place = (engine.state.iteration - 1) % length + 1
        if place % gradient_accumulation_steps == 1 or gradient_accumulation_steps == 1:
            optimizer.zero_grad()
        model.train()
        x, y = prepare_batch(batch)
        y_pred = model(x)
        found = loss_fn(y_pred, y)
        losses, count = found if isinstance(found, tuple) else (found, None)
        accumulator.backward(losses, count)
        if place % gradient_accumulation_steps == 0 or place == engine.state.epoch_length:
            accumulator.finish()
            _step(model, optimizer, scaler, max_norm)
        return output_transform(x, y, y_pred, mean_and_number(losses, count)[0])

    return step


def _step(model: Any, optimizer: Any, scaler: Any, max_norm: float | None) -> None:
    if scaler is not None:
        scaler.unscale_(optimizer)
    if max_norm is not None:
        clip_grad_norm_(model.parameters(), max_norm)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def _guard_metrics() -> Callable[[], None]:
    """Guard existing classes, and those that ignite defines later."""
    from ignite.metrics.metric import Metric

    undone: list[Callable[[], None]] = []

    def guard(kind: Any) -> None:
        update = vars(kind).get("update")
        if update and kind.__module__.partition(".")[0] == "ignite" and kind.__name__ not in HAND_ON:
            kind.update = guarded(kind.__name__, update, "mg.align(y_pred, y)")
            undone.append(lambda: setattr(kind, "update", update))

    def below(kind: Any) -> None:
        for one in kind.__subclasses__():
            guard(one)
            below(one)

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(Metric, cls).__init_subclass__(**kwargs)
        guard(cls)

    def undo() -> None:
        del Metric.__init_subclass__
        for put_back in undone:
            put_back()

    below(Metric)
    Metric.__init_subclass__ = classmethod(init_subclass)
    return undo


INTEGRATION = Integration(
    "ignite",
    without="wrong in silence",
    patches=(
        Patch(
            target="ignite.metrics.metric.Metric.__init_subclass__",
            reason="metrics divide by the number of all entries, and weight batches by it",
            without="metrics of ignite count unspecified entries; return mg.align(y_pred, y) from the engine",
            test="tests/ecosystem/test_ignite.py::test_metrics_refuse",
            needs={"ignite.metrics.metric.Metric.update": "self output"},
            install=_guard_metrics,
            after="ignite.metrics.metric",
        ),
    ),
)
