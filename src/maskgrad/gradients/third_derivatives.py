"""Third derivatives that are silently wrong in PyTorch, or (batches, since 2.15) missing, raise an error.

The second derivatives of layer normalization, and of batch normalization in training mode, are right (torch 2.13). They
are written with the mean and the variance that the forward pass kept, which their own derivative takes for constants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node as GraphNode
from torch.nn import functional as F

from maskgrad.gradients.backward_passes import nodes_between
from maskgrad.gradients.batch_nodes import Node

__all__ = ["require_third_derivatives"]


def require_third_derivatives(output: Node, inputs: Sequence[Node]) -> None:
    """NotImplementedError if a normalization of PyTorch lies between ``inputs`` and ``output``."""
    for node in nodes_between(output.plain, [given.plain for given in inputs]):
        what = _suspect(node)
        if what is not None and not _is_right(what):
            raise NotImplementedError(
                f"create_graph=True: {inputs[0].name} and {output.name} are connected by {what} normalization, whose "
                f"third derivatives are wrong, or not there, in PyTorch {torch.__version__}. Write it out, as in "
                "(x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt(), or leave "
                "create_graph out"
            )


def _suspect(node: GraphNode) -> str | None:
    name = node.name()
    if "LayerNorm" in name:
        return "layer"
    # In evaluation mode it is a multiplication.
    return "batch" if "BatchNorm" in name and getattr(node, "_saved_training", True) else None


@functools.cache
def _is_right(what: str) -> bool:
    """Whether this version of PyTorch has them right."""
    dim = 1 if what == "layer" else 0

    def normalized(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[1:]) if what == "layer" else F.batch_norm(x, None, None, training=True)

    def written_out(x: Tensor) -> Tensor:
        centred = x - x.mean(dim, keepdim=True)
        return centred / (centred.square().mean(dim, keepdim=True) + 1e-5).sqrt()

    try:
        return torch.allclose(_third(normalized), _third(written_out))
    except RuntimeError:  # of batches since PyTorch 2.15: batch_norm does not support 3rd+ order
        return False


@torch.inference_mode(False)
@torch.enable_grad()
def _third(function: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5], [0.25, 1.0, 3.0]], dtype=torch.float64)
    weights = torch.linspace(1, 2, x.numel(), dtype=x.dtype).reshape(x.shape)
    found = x.requires_grad_()
    number = (function(x) * weights.sin()).sum()
    for _ in range(3):
        (found,) = torch.autograd.grad(number, x, create_graph=True)
        number = (found * weights).sum()
    return found.detach()
