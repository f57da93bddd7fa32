"""Batch normalisation with the statistics of the specified entries of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.distributed.global_sums import global_sums
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.semantics.batch_normalization import follow, unbiased
from maskgrad.semantics.normalization import affine

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    r"""``torch.nn.BatchNorm1d`` to ``3d`` over the specified entries of all ranks, on any device.

    .. math:: y = \frac{x - \bar x}{\sqrt{\sigma^2 + \varepsilon}}\, w + b

    Mean and variance of a channel are those of its specified entries on all ranks, as in one process on the joint
    batch, and so are the running statistics. A channel without entries does not change them; one with a
    single entry updates the mean only. In evaluation nothing is exchanged.

    Args:
        num_features: number of channels C.
        eps: added to the variance.
        momentum: momentum of the running statistics; None: cumulative average.
        affine: whether there are weight and bias.
        track_running_stats: whether there are running statistics.
        process_group: a group of any backend; None: the default one, or this process alone if there is none.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Shapes: ``(N, C, *)``, plain or masked; N may be 0 on some ranks. The result has the input's mask.

    Gradient:
        That of the sum of the ranks' losses, through the common statistics. Averaged over the ranks, it is that of
        one process. Every rank must run the backward pass.

    Raises:
        ValueError: the input has fewer than 2 dimensions, or another number of channels.
        TypeError: the input is stored in a sparse layout.
        RuntimeError: a rank has ended, or did not respond within the group's timeout.

    Dense equivalent: ``torch.nn.SyncBatchNorm``, which takes plain tensors on a GPU.

    Example:
        >>> layer = mg.distributed.SyncBatchNorm(1, affine=False)
        >>> layer(mg.from_nan(torch.tensor([[1.], [float("nan")], [3.]]))).filled(0.).round(decimals=3)
        tensor([[-1.],
                [ 0.],
                [ 1.]])

    Source: Ioffe, Szegedy, "Batch normalization", ICML 2015; ``torch.nn.SyncBatchNorm``.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_group = process_group

    def forward(self, input: Any) -> Any:
        """Normalise."""
        self._check_input_dim(input)
        training = self.training or self.running_mean is None
        if not training:
            return nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        values, mask = input._dense() if isinstance(input, MaskedTensor) else (input, None)
        out = self._standardized(values, mask)
        return out if mask is None else of_entries(out, mask)

    def _check_input_dim(self, input: Any) -> None:
        if isinstance(input, MaskedTensor) and stored_of(input) is not None:
            raise TypeError(
                f"SyncBatchNorm takes strided tensors and MaskedTensors with a Boolean mask, found {input.layout}; use "
                "x.to_dense()"
            )
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"expected an input of shape (N, {self.num_features}, *), found {tuple(input.shape)}"
            )

    def _standardized(self, values: Tensor, mask: Tensor | None) -> Tensor:
        dims, channels = [d for d in range(values.dim()) if d != 1], (-1, *(1,) * (values.dim() - 2))
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        if mask is None:
            mask = torch.ones((), dtype=torch.bool, device=values.device).expand(values.shape)
        safe = torch.where(mask, wide, 0)
        count, total = self._added_up(mask.sum(dims), safe.sum(dims))
        number = count.clamp(min=1)
        mean = total / number
        deviation = torch.where(mask, safe - mean.view(channels), 0)
        (square,) = self._added_up((deviation * deviation).sum(dims))
        variance = square / number
        scale = torch.rsqrt(torch.where(count > 0, variance + self.eps, 1))
        self._update(mean.detach(), variance.detach(), count)
        scale = scale.view(channels)
        out = affine(deviation * scale, scale, mask, self.weight, self.bias, channels, values.dtype)
        return torch.where(mask, out.values, 0)

    def _added_up(self, *parts: Tensor) -> tuple[Tensor, ...]:
        ranks = ProcessGroup(self.process_group, "SyncBatchNorm", or_alone=True)
        return parts if ranks.size == 1 else global_sums(ranks, parts)

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Update the running statistics."""
        if self.running_mean is None or not self.training:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        assert momentum is not None
        follow(self.running_mean, mean, count > 0, momentum)
        follow(self.running_var, unbiased(variance, count), count > 1, momentum)

    @classmethod
    def convert(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Replace all BatchNorm layers of a module by such layers, with their parameters and statistics.

        Args:
            module: a module, or a BatchNorm layer itself.
            process_group: a group of any backend; None: the default one.

        Returns:
            ``module``, changed in place; the new layer if it was a BatchNorm layer itself.
        """
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, cls):
            made = cls(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                process_group,
            )  # fmt: skip
            made.weight, made.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(made, name, getattr(module, name))
            made.training = module.training
            return made
        for name, child in module.named_children():
            converted = cls.convert(child, process_group)
            if converted is not child:
                module.add_module(name, converted)
        return module
