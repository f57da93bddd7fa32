"""PyTorch's optimizers that need the complete gradient of a parameter: dense gradients only."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from maskgrad.gradients.attached import current_gradient
from maskgrad.gradients.step_hooks import StepObserver, named, observe_steps

__all__ = ["LBFGS", "Adafactor", "DenseOnly", "Muon"]


DOC = """
    Args:
        args, kwargs: those of ``torch.optim.{name}``.

    State:
        That of ``torch.optim.{name}``; state dicts can be exchanged in both directions.

    Raises:
        TypeError: a gradient is sparse or masked, but {reason}. Nothing is updated then.
        ValueError: as in PyTorch.

    Dense equivalent: ``torch.optim.{name}``.

    Example:"""


class DenseOnly(Optimizer):
    """An optimizer that accepts dense gradients only, with a reason."""

    reason: ClassVar[str]
    #: Refused here, with the reason of this optimizer, not by maskgrad.gradients.attached.
    takes_masked_gradients = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        observe_steps(_CHECK)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == __name__:
            shared = DOC.format(name=cls.__name__, reason=cls.reason)
            cls.__doc__ = inspect.cleandoc(str(cls.__doc__)).replace("Example:", inspect.cleandoc(shared), 1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        observe_steps(_CHECK)


class _Check(StepObserver):
    """Raises for a sparse or masked gradient, before anything is updated."""

    def gradients_ready(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, DenseOnly):
            return
        for position, group in enumerate(optimizer.param_groups):
            for name, param in named(group, position):
                grad = current_gradient(param, name)
                if grad is None or (type(grad) is torch.Tensor and grad.layout is torch.strided):
                    continue
                layout = getattr(grad, "layout", None)
                raise TypeError(
                    f"the gradient of {name} is a {type(grad).__name__}{f' of {layout}' if layout else ''}, but "
                    f"mg.optim.{type(optimizer).__name__} accepts dense gradients only: {optimizer.reason}. Train this "
                    "parameter with another optimizer of mg.optim, or use param.grad = param.grad.to_dense(), with "
                    "zeros for missing entries"
                )


_CHECK = _Check()


class Muon(DenseOnly, torch.optim.Muon):
    r"""Implements ``torch.optim.Muon``, for dense gradients of matrices only.

    .. math:: b \leftarrow \mu b + (1 - \mu) g, \qquad p \leftarrow p - \mathrm{lr}\, (\lambda p + U V^\top),
              \quad b = U S V^\top

    Example:
        >>> p = torch.nn.Parameter(torch.eye(2))
        >>> p.grad = torch.ones(2, 2)
        >>> mg.optim.Muon([p], lr=0.1).step()
        >>> p.grad = p.grad.to_sparse()
        >>> mg.optim.Muon([p]).step()
        Traceback (most recent call last):
            ...
        TypeError: the gradient of parameter 0 of group 0 is a Tensor of torch.sparse_coo, but mg.optim.Muon accepts
        dense gradients only: ...

    Source: Jordan and others 2024, "Muon: an optimizer for hidden layers in neural networks"; ``torch.optim.Muon``.
    """

    reason = "its step is an orthogonal matrix, made of the whole gradient"


class Adafactor(DenseOnly, torch.optim.Adafactor):
    r"""Implements ``torch.optim.Adafactor``, for dense gradients only.

    .. math:: v_{ij} \approx \frac{r_i c_j}{\sum_i r_i}, \qquad r_i, c_j \text{ averages of } g^2 \text{ in row, column}

    Example:
        >>> p = torch.nn.Parameter(torch.ones(2, 2))
        >>> p.grad = torch.ones(2, 2)
        >>> mg.optim.Adafactor([p], lr=0.1).step()
        >>> bool((p < 1).all())
        True

    Source: Shazeer and Stern, "Adafactor", ICML 2018; ``torch.optim.Adafactor``.
    """

    reason = "second moments of columns are means over all rows (mg.optim.Adam with state='row' needs as little memory)"


class LBFGS(DenseOnly, torch.optim.LBFGS):
    r"""Implements ``torch.optim.LBFGS``, for dense gradients only.

    .. math:: p \leftarrow p - \mathrm{lr}\, H g, \quad H \text{ from the last differences of parameters and gradients}

    Example:
        >>> p = torch.nn.Parameter(torch.tensor([3.0]))
        >>> optimizer = mg.optim.LBFGS([p])
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = (p**2).sum()
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure)
        tensor(9., grad_fn=<SumBackward0>)
        >>> abs(p.item()) < 1e-5
        True

    Source: Liu and Nocedal, "On the limited memory BFGS method", 1989; ``torch.optim.LBFGS``.
    """

    reason = "it estimates the curvature from differences of whole gradients"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # PyTorch's drops attributes other than the groups, so a copy cannot step.
        self._params = self.param_groups[0]["params"]
        self._numel_cache = None
