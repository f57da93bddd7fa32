"""Metrics of ignite: wrapped ones can be attached to engines."""

from __future__ import annotations

from typing import Any

from ignite.metrics import Metric

from maskgrad.metrics.wrapping import FUNCTION, aligned_arguments

__all__ = ["MaskedIgniteMetric", "wrap_metric"]


class MaskedIgniteMetric(Metric):  # type: ignore[misc]
    """A metric of ignite on the common positions of the tensors of an output; state and exchange are ``metric``'s."""

    def __init__(self, metric: Any, class_dim: int | None = None) -> None:
        self.metric, self.class_dim = metric, class_dim
        self.required_output_keys = metric.required_output_keys
        super().__init__(
            output_transform=metric._output_transform,
            device=metric._device,
            skip_unrolling=metric._skip_unrolling,
        )

    def reset(self) -> None:
        """Reset the metric."""
        self.metric.reset()

    def update(self, output: Any) -> None:
        """Update the metric with ``(y_pred, y)``, or ``(y_pred, y, options)``, unless they have no common positions."""
        if not isinstance(output, (tuple, list)):
            found = aligned_arguments((output,), {}, None)
            if found is None:
                return
            if found[0][0] is output:
                self.metric.update(output)
                return
            raise TypeError(
                f"{FUNCTION}: {type(self.metric).__name__} takes a single tensor for a sample, and a MaskedTensor's "
                "entries would be one of many dimensions; pass x.compressed().unsqueeze(1), one sample each"
            )
        tensors, options = tuple(output[:2]), tuple(output[2:])
        found = aligned_arguments(tensors, {}, self.class_dim)
        if found is not None:
            self.metric.update((*found[0], *options))

    def compute(self) -> Any:
        """The metric's value, over all ranks."""
        return self.metric.compute()


#: Metrics whose rows are samples, which flat tensors do not have.
SHAPED = ("HSIC", "MaximumMeanDiscrepancy", "MeanPairwiseDistance", "PSNR", "SSIM")
SHAPED_MODULES = tuple(f"ignite.metrics.{name}" for name in ("gan", "nlp", "rec_sys", "vision"))


def wrap_metric(metric: Any, class_dim: int | None) -> MaskedIgniteMetric:
    """Return ``metric`` with an ``update`` that aligns its arguments."""
    own = type(metric)
    if own.attach is not Metric.attach or own.iteration_completed is not Metric.iteration_completed:
        raise TypeError(
            f"{FUNCTION}: {own.__name__} is computed from other metrics, which an engine updates one by one; wrap "
            f"these: {own.__name__}(mg.metrics.wrap(metric))"
        )
    samples = own.__name__ in SHAPED or own.__module__.startswith(SHAPED_MODULES)
    # vars: missing attributes return metrics of attributes
    if samples or vars(metric).get("_is_multilabel"):
        raise ValueError(
            f"{FUNCTION}: {own.__name__} reads {'samples' if samples else 'columns'}, and aligned tensors are flat "
            "(K,); wrap one metric for each column, or update it sample by sample with mg.align(y_pred[i], y[i])"
        )
    return MaskedIgniteMetric(metric, class_dim)
