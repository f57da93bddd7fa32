"""Optimizers of PyTorch that look at a parameter as a whole: passed through for dense gradients, refused for others."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from maskgrad.gradients.attached import current_gradient
from maskgrad.gradients.step_hooks import StepObserver, observe_steps

__all__ = ["LBFGS", "Adafactor", "DenseOnly", "Muon"]


class DenseOnly(Optimizer):
    """An optimizer that takes dense gradients only, and says why."""

    reason: ClassVar[str]
    #: Refused here, with the reason of this optimizer, and not in the words of maskgrad.gradients.masked_grad.
    takes_masked_gradients = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        observe_steps(_REFUSING)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        observe_steps(_REFUSING)

    def check_gradients(self) -> None:
        """Refuse a gradient that specifies some entries only, before anything moves."""
        for position, group in enumerate(self.param_groups):
            for number, param in enumerate(group["params"]):
                name = f"parameter {number} of group {position}"
                grad = current_gradient(param, name)
                if grad is None or (type(grad) is torch.Tensor and grad.layout is torch.strided):
                    continue
                kind = type(self).__name__
                layout = getattr(grad, "layout", None)
                raise TypeError(
                    f"the gradient of {name} is a {type(grad).__name__}{f' of {layout}' if layout else ''}, and "
                    f"mg.optim.{kind} takes dense ones only: {self.reason}. Train this parameter with another "
                    "optimizer of mg.optim, or write param.grad = param.grad.to_dense(), with zeros where there is none"
                )


class _Refusing(StepObserver):
    """PyTorch's hook before a step, and after each closure."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Nothing is known yet."""

    def before_closure(self, optimizer: Optimizer) -> None:
        """Nothing is known yet."""

    def gradients_ready(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, DenseOnly):
            optimizer.check_gradients()

    def after_step(self, optimizer: Optimizer) -> None:
        """Nothing to do."""


_REFUSING = _Refusing()


class Muon(DenseOnly, torch.optim.Muon):
    r"""``torch.optim.Muon``, whose step is an orthogonal matrix: dense gradients of matrices only.

    .. math:: b \leftarrow \mu b + (1 - \mu) g, \qquad p \leftarrow p - \mathrm{lr}\, (\lambda p + U V^\top),
              \quad b = U S V^\top

    Args:
        params, lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as in PyTorch.

    State:
        That of ``torch.optim.Muon``; state dicts can be exchanged, both ways.

    Raises:
        TypeError: a gradient is sparse or masked: there is no orthogonal matrix of some rows that leaves the others
            alone. Nothing has moved then.
        ValueError: what PyTorch refuses, such as parameters that are no matrices.

    Dense equivalent: ``torch.optim.Muon``.

    Example:
        >>> p = torch.nn.Parameter(torch.eye(2))
        >>> p.grad = torch.ones(2, 2)
        >>> mg.optim.Muon([p], lr=0.1).step()
        >>> p.grad = p.grad.to_sparse()
        >>> mg.optim.Muon([p]).step()
        Traceback (most recent call last):
            ...
        TypeError: the gradient of parameter 0 of group 0 is a Tensor of torch.sparse_coo, and mg.optim.Muon takes dense
        ones only: ...

    Source: Jordan and others 2024, "Muon: an optimizer for hidden layers in neural networks"; ``torch.optim.Muon``.
    """

    reason = "its step is an orthogonal matrix made of the whole gradient, which some rows do not have"


class Adafactor(DenseOnly, torch.optim.Adafactor):
    r"""``torch.optim.Adafactor``, which keeps second moments of rows and of columns: dense gradients only.

    .. math:: v_{ij} \approx \frac{r_i c_j}{\sum_i r_i}, \qquad r_i, c_j \text{ averages of } g^2 \text{ in row, column}

    Args:
        params, lr, beta2_decay, eps, d, weight_decay, foreach, maximize: as in PyTorch.

    State:
        That of ``torch.optim.Adafactor``; state dicts can be exchanged, both ways.

    Raises:
        TypeError: a gradient is sparse or masked: the moment of a column needs all rows. Nothing has moved then. For
            tables, ``state="row"`` of :class:`Adagrad`, :class:`Adam` or :class:`RMSprop` is as small.
        ValueError: what PyTorch refuses.

    Dense equivalent: ``torch.optim.Adafactor``.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(2, 2))
        >>> p.grad = torch.ones(2, 2)
        >>> mg.optim.Adafactor([p], lr=0.1).step()
        >>> bool((p < 1).all())
        True

    Source: Shazeer and Stern, "Adafactor", ICML 2018; ``torch.optim.Adafactor``.
    """

    reason = (
        "the second moment of a column is a mean over all rows (state='row' of mg.optim.Adam needs as little)"
    )


class LBFGS(DenseOnly, torch.optim.LBFGS):
    r"""``torch.optim.LBFGS``, which compares whole gradients with each other: dense ones only.

    .. math:: p \leftarrow p - \mathrm{lr}\, H g, \quad H \text{ from the last differences of parameters and gradients}

    Args:
        params, lr, max_iter, max_eval, tolerance_grad, tolerance_change, history_size, line_search_fn: as in PyTorch.

    State:
        That of ``torch.optim.LBFGS``; state dicts can be exchanged, both ways.

    Raises:
        TypeError: a gradient is sparse or masked: the curvature along an entry that had no gradient is not known.
        ValueError: what PyTorch refuses, such as several groups.

    Dense equivalent: ``torch.optim.LBFGS``.

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

    reason = "it estimates curvature from differences of whole gradients, and an entry without one has none"

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; PyTorch's loses what it keeps beside the groups, so that a copy cannot step."""
        super().__setstate__(state)
        self._params = self.param_groups[0]["params"]
        self._numel_cache = None
