"""Functions and classes of other packages that look at tensors with their own eyes, and are shown MaskedTensors.

- einops calls methods of tensors, once it knows that MaskedTensors have them.
- torch_geometric's ``scatter``, on which its pooling, aggregations and norms rest, divides by counts of all rows. The
  specified entries alone go through it, one by one, each to the entry of the result that its row goes to. A group of
  which nothing is left is unspecified; one that never had a row is what torch_geometric makes of it.
- Mixtures of experts in transformers look tokens up with indices that were computed from the tokens: of one that is
  unspecified the index is, too. The specified tokens go through as plain rows, and come back to their places.
- Transforms of torchvision (v2) take samples apart as pytrees, transform the first plain tensor as an image and leave
  the others alone: of a MaskedTensor the values were flipped and the mask was not. Here a MaskedTensor is an image:
  torchvision's kernels for images are ordinary PyTorch.
- Metrics of torchmetrics and ignite divide by the number of all entries: those that nobody has wrapped say so. Only
  what these packages have written refuses: a class of someone else's may know what is specified.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries
from maskgrad.masked_tensor.torch_patches.patch import exchange, has_masked
from maskgrad.masked_tensor.torch_patches.pytrees import is_masked

__all__ = [
    "balance_experts",
    "guard_ignite",
    "guard_torchmetrics",
    "register_einops",
    "route_to_experts",
    "scatter",
    "transform_images",
]

_KEPT: list[type] = []


def register_einops() -> None:
    """Define a backend: einops finds all classes derived from its own."""
    from einops import _backends

    class MaskedBackend(_backends.TorchBackend):  # type: ignore[misc]
        framework_name = "maskgrad"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, MaskedTensor)

        def from_numpy(self, x: Any) -> Any:
            raise NotImplementedError("numpy's arrays have no pattern; use mg.from_numpy")

        def to_numpy(self, x: Any) -> Any:
            return x.to_numpy()

    # einops keeps the classes in a list of weak references, for as long as somebody else has them
    _KEPT.append(MaskedBackend)


def scatter(
    original: Callable[..., Any],
    src: Any,
    index: Any,
    dim: int = 0,
    dim_size: Any = None,
    reduce: str = "sum",
) -> Any:
    """``torch_geometric.utils.scatter`` of the specified entries."""
    if isinstance(index, MaskedTensor) and bool(index.mask.all()):  # zeros made from a MaskedTensor
        index = index._dense()[0]
    if not (isinstance(src, MaskedTensor) or isinstance(index, MaskedTensor)):
        return original(src, index, dim, dim_size, reduce)
    if isinstance(index, MaskedTensor) or index.dim() != 1:
        found = f"{type(index).__name__} with {index.dim()} dimensions"
        raise UnsupportedOperationError(
            "torch_geometric.utils.scatter",
            f"index must be a plain tensor with one dimension, found a {found}",
            "Leave out what goes nowhere: scatter(src[keep], index[keep]).",
        )
    values, mask = src._dense()
    dim = dim + values.dim() if dim < 0 else dim
    if not 0 <= dim < values.dim() or index.numel() != values.shape[dim]:
        raise ValueError(
            f"index must have an entry for each of the {tuple(values.shape)} along dimension {dim}, found "
            f"{index.numel()}"
        )
    if dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() else 0
    shape = (*values.shape[:dim], int(dim_size), *values.shape[dim + 1 :])
    places = torch.arange(torch.Size(shape).numel(), device=values.device).view(shape)
    places = places.index_select(dim, index)
    result = original(values[mask], places[mask], 0, torch.Size(shape).numel(), reduce).view(shape)
    specified = torch.zeros(shape, dtype=torch.bool, device=values.device)
    never = torch.bincount(index, minlength=shape[dim]) == 0
    specified.index_fill_(dim, torch.arange(shape[dim], device=index.device)[never], True)
    specified.view(-1)[places[mask]] = True
    return of_entries(result, specified)


def route_to_experts(get_interface: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """What the classes of experts look up at each call, under whatever implementation."""
    return by_rows(get_interface(*args, **kwargs))


def by_rows(experts_forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of experts, of the specified tokens."""

    @functools.wraps(experts_forward)
    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        given = [hidden_states, *args, *kwargs.values()]
        dense = [x._dense() for x in given if isinstance(x, MaskedTensor)]
        if not dense:
            return experts_forward(self, hidden_states, *args, **kwargs)
        masks = [mask.flatten(1) for _, mask in dense]
        there = torch.stack([mask.all(1) for mask in masks]).all(0)
        if any(bool((mask.any(1) & ~there).any()) for mask in masks) or hidden_states.dim() != 2:
            raise UnsupportedOperationError(
                type(self).__name__,
                "a token is specified in part, and experts take it whole",
                "Mask whole tokens, mg.masked(embeddings, mask[..., None]), or give x.filled(0.).",
            )

        def rows(x: Any) -> Any:
            if isinstance(x, MaskedTensor):
                return x._dense()[0][there]
            return x[there] if isinstance(x, torch.Tensor) and x.shape[:1] == there.shape else x

        named = {name: rows(x) for name, x in kwargs.items()}
        found = experts_forward(self, rows(hidden_states), *map(rows, args), **named)
        values = found.new_zeros(len(there), *found.shape[1:])
        values = values.index_put((there.nonzero(as_tuple=True)[0],), found)
        return of_entries(values, there[:, None].expand(values.shape))

    return forward


def balance_experts(
    original: Callable[..., Any],
    gate_logits: Any,
    num_experts: Any = None,
    top_k: Any = 2,
    attention_mask: Any = None,
) -> Any:
    """The loss that distributes tokens over experts divides by the number of all rows: of the specified ones."""
    if has_masked(gate_logits):
        dense = [x._dense() if is_masked(x) else (x, x.new_ones(x.shape)) for x in gate_logits]
        there = torch.stack([mask.bool().flatten(1).all(1) for _, mask in dense]).all(0)
        gate_logits = tuple(values[there] for values, _ in dense)
        if attention_mask is not None:
            attention_mask = torch.as_tensor(attention_mask).reshape(-1)[there][None]
    return original(gate_logits, num_experts, top_k, attention_mask)


def transform_images() -> None:
    """Register torchvision's kernels for images, and look into samples."""
    from torchvision.transforms.v2.functional import _utils

    for kernels in _utils._KERNEL_REGISTRY.values():
        if torch.Tensor in kernels:
            kernels.setdefault(MaskedTensor, kernels[torch.Tensor])

    def is_pure_tensor(original: Callable[[Any], bool], inpt: Any) -> bool:
        return original(inpt) or isinstance(inpt, MaskedTensor)

    module = "torchvision.transforms.v2._transform"
    exchange("torchvision.transforms.v2.functional._utils.is_pure_tensor", is_pure_tensor)
    exchange(f"{module}.Transform.forward", _transformed)
    exchange(f"{module}._RandomApplyTransform.forward", functools.partial(_transformed, by_chance=True))
    exchange(f"{module}.Transform.__call__", _transform_or_refuse)


def _transformed(original: Callable[..., Any], self: Any, *inputs: Any, by_chance: bool = False) -> Any:
    """``Transform.forward``, which chooses what to transform and asks for parameters once for all of it."""
    sample = inputs if len(inputs) > 1 else inputs[0]
    leaves, spec = pytree.tree_flatten(sample, is_masked)
    if not any(map(is_masked, leaves)):
        return original(self, *inputs)
    from torchvision import tv_tensors

    # Stand-ins that say type, size and dtype: parameters depend on nothing else.
    plain = [tv_tensors.Image(leaf._dense()[0].detach()) if is_masked(leaf) else leaf for leaf in leaves]
    self.check_inputs(plain)
    if by_chance and torch.rand(1) >= self.p:
        return sample
    needed = self._needs_transform_list(plain)
    params = self.make_params([leaf for leaf, needs in zip(plain, needed, strict=True) if needs])
    pairs = zip(leaves, needed, strict=True)
    return pytree.tree_unflatten([self.transform(x, params) if needs else x for x, needs in pairs], spec)


def _transform_or_refuse(original: Callable[..., Any], self: Any, *inputs: Any, **kwargs: Any) -> Any:
    """Refuse where a transform takes its sample apart in a way of its own."""
    from torchvision.transforms.v2 import Transform
    from torchvision.transforms.v2._transform import _RandomApplyTransform

    name, forward = type(self).__name__, type(self).forward
    hands_on = name in ("Compose", "RandomApply", "RandomChoice", "RandomOrder")
    if has_masked(inputs) and not (hands_on or forward in (Transform.forward, _RandomApplyTransform.forward)):
        raise UnsupportedOperationError(
            f"torchvision.transforms.v2.{name}",
            "it takes samples apart in a way of its own, and would transform the values and not the mask",
            "Transform x.filled(0.), or take transforms that are one operation each.",
        )
    return original(self, *inputs, **kwargs)


#: Metrics that hand on what they are given to other metrics, which may be wrapped.
HAND_ON = ("CompositionalMetric", "MetricGroup", "MetricsLambda")


def _guarded(name: str, update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def function(*args: Any, **kwargs: Any) -> Any:
        if has_masked(args) or has_masked(kwargs):
            raise UnsupportedOperationError(
                f"{name}.update",
                "it counts unspecified entries, too",
                "Write metric = mg.metrics.wrap(metric) once, or metric.update(*mg.align(prediction, target)).",
            )
        return update(*args, **kwargs)

    return function


def guard_torchmetrics(wrap_update: Callable[..., Any], self: Any, update: Any) -> Any:
    """Each metric makes its ``update`` with a method of the base class; wrappers, ours among them, have another."""
    made, name = wrap_update(self, update), type(self).__name__
    is_theirs = update.__module__.partition(".")[0] == "torchmetrics"
    return _guarded(name, made) if is_theirs and name not in HAND_ON else made


def guard_ignite() -> None:
    """The classes that there are, and those that the package defines later."""
    from ignite.metrics.metric import Metric

    def guard(kind: Any) -> None:
        update = vars(kind).get("update")
        if update and kind.__module__.partition(".")[0] == "ignite" and kind.__name__ not in HAND_ON:
            kind.update = _guarded(kind.__name__, update)

    def below(kind: Any) -> None:
        for one in kind.__subclasses__():
            guard(one)
            below(one)

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(Metric, cls).__init_subclass__(**kwargs)
        guard(cls)

    below(Metric)
    Metric.__init_subclass__ = classmethod(init_subclass)
