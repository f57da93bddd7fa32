"""Which entries of an intermediate tensor belong to real entries of the batch.

Each memory has a Boolean validity mask, so that views need no rule. What an operation makes gets its mask by the first
rule that fits: copies run on the mask, pointwise operations take the intersection, products ask for one real pair,
reductions for one real entry; what keeps leading dimensions takes their mask over; what has the shape of the batch's
mask takes that; everything else is real.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from maskgrad.doctor.operations import COPIES, Operated, expanded, key_of, mapped, tensors_in

__all__ = ["ValidityMasks", "distinct"]


def distinct(masks: list[Tensor]) -> list[Tensor]:
    """Masks of samples, or of batch and sequence: each once, without sizes of 1 between or after both."""
    kept: list[Tensor] = []
    for mask in masks:
        axes = [axis for axis in range(1, mask.ndim) if mask.shape[axis] == 1]
        plain = mask.squeeze(axes) if mask.ndim - len(axes) == 2 else mask
        if not any(plain.shape == other.shape and torch.equal(plain, other) for other in kept):
            kept.append(plain)
    return kept


def _shaped(mask: Tensor, output: Tensor) -> Tensor | None:
    """The mask of samples, or of samples and positions, if an axis has their number; heads may stand with samples."""
    shape = list(output.shape)
    if not output.numel() or not 1 <= mask.ndim <= min(2, len(shape)):
        return None
    mask = mask.to(output.device)
    if mask.ndim == 2 and shape[0] == mask.numel():
        return expanded(mask.flatten(), shape)
    batch = next((axis for axis, size in enumerate(shape) if size == len(mask)), None)
    if batch is None:
        if shape[0] % len(mask):
            return None
        batch, mask = 0, mask.repeat_interleave(shape[0] // len(mask), 0)
    if mask.ndim == 1:
        return expanded(mask, shape[batch:]).expand(shape)
    axes = [axis for axis, size in enumerate(shape) if size == mask.shape[1] and axis != batch]
    if not axes:
        return None
    validity = torch.ones(shape, dtype=torch.bool, device=output.device)
    for axis in axes[:2] if len(axes) > 1 and axes[1] == axes[0] + 1 else axes[:1]:
        view = [1] * len(shape)
        view[batch], view[axis] = shape[batch], shape[axis]
        validity &= (mask if batch < axis else mask.t()).reshape(view)
    return validity


_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1)}
_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "logsumexp", "prod", "any", "all", "std", "var", "var_mean",
    "std_mean", "argmax", "argmin", "norm", "linalg_vector_norm", "median", "nansum", "kthvalue", "mode",
}  # fmt: skip
#: reductions with another argument before the dimension
_SECOND_ARGUMENT = {"norm", "linalg_vector_norm", "kthvalue"}
#: the first argument decides which positions of the result are real
_ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")
_QUERIES = (*_ATTENTION, "convolution", "gather", "embedding")
_RESHAPERS = {
    "slice_backward", "select_backward", "unfold_backward", "_reshape_copy", "view_copy", "expand_copy",
    "as_strided_copy", "as_strided_scatter", "slice_scatter", "select_scatter",
}  # fmt: skip


class ValidityMasks:
    """The validity of every memory that has one."""

    def __init__(self, masks: list[Tensor]) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, Tensor]] = {}
        self._slices: dict[tuple[Any, ...], StorageWeakRef] = {}
        self._fresh = 0
        #: distinct masks of the batch, by which shapes are recognised
        self.masks = distinct(masks)
        #: sizes of packed sequences, in which the samples' first positions come first, then their second ones
        self.packed: set[int] = set()

    # one tensor

    def get(self, tensor: Tensor) -> Tensor | None:
        """The validity of a tensor, None if all of it is real."""
        key = key_of(tensor)
        if key is None or _view_key(tensor) in self._slices:
            return None
        entry = self._storages.get(key)
        if entry is None or entry[0].expired() or _entries(tensor) != len(entry[1]):
            return None
        return entry[1].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def set(self, tensor: Tensor, validity: Tensor | None) -> None:
        """Write the validity of a tensor into that of its memory."""
        key = key_of(tensor)
        if key is None:
            return
        self._slices.pop(_view_key(tensor), None)
        whole = self._storages.get(key)
        if whole is None or whole[0].expired() or len(whole[1]) != _entries(tensor):
            if validity is None:
                return
            flat = torch.ones(_entries(tensor), dtype=torch.bool, device=tensor.device)
            whole = (StorageWeakRef(tensor.untyped_storage()), flat)
            self._storages[key] = whole
            self._fresh += 1
            if self._fresh > len(self._storages) // 8:
                self._fresh = 0
                self._storages = {k: entry for k, entry in self._storages.items() if not entry[0].expired()}
        view = whole[1].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if validity is None:
            view.fill_(True)
        else:
            _write(view, validity)

    def slice(self, tensor: Tensor) -> None:
        """From here on all of this view is real: its position in the sequence is lost."""
        self._slices[_view_key(tensor)] = StorageWeakRef(tensor.untyped_storage())

    def is_slice(self, tensor: Tensor) -> bool:
        """Whether the tensor is a view that lost its position."""
        reference = self._slices.get(_view_key(tensor)) if key_of(tensor) is not None else None
        return reference is not None and not reference.expired()

    # what operations make

    def of_result(self, call: Operated, result: Any) -> list[Tensor | None]:
        """The validity of each tensor that an operation made, None where all is real."""
        name, args, outputs = call.facts.name, call.args, tensors_in(result)
        validities = [self.get(tensor) for tensor in call.inputs]
        if name in ("stack", "cat") and self._is_loop_over_positions(validities):
            return [self.by_shape(output) for output in outputs]
        if (
            name == "constant_pad_nd"
            and validities[0] is not None
            and self._is_filled_up(args[0], outputs[0])
        ):
            at_positions = self.by_shape(outputs[0])
            if at_positions is not None:
                return [at_positions]
        if name in COPIES | _RESHAPERS:
            copied = self._copied(call)
            if copied is not None and len(copied) == len(outputs):
                return copied
        if name in ("_pack_padded_sequence", "_pad_packed_sequence") and validities[0] is not None:
            # rows are reordered, and padding is left out, or comes back
            rest = (*args[1:3], 1.0, *args[4:]) if name == "_pad_packed_sequence" else args[1:]
            if name == "_pack_padded_sequence":
                self.packed.add(len(outputs[0]))
            return [call.func(validities[0].float(), *rest)[0] > 0, None]
        return [self._of_one(call, validities, output) for output in outputs]

    def _of_one(self, call: Operated, validities: list[Tensor | None], output: Tensor) -> Tensor | None:
        name, args, inputs = call.facts.name, call.args, call.inputs
        if call.facts.pointwise or name == "masked_fill":
            own = self._at_its_positions(validities, output)
            return _intersection(validities, output.shape) if own is None else own
        if name in _PRODUCTS or name.startswith(_QUERIES):
            samples = self._by_samples(inputs, validities, output)
            if samples is not None:
                return samples
        if name in _PRODUCTS:
            first, second = _PRODUCTS[name]
            return self._product(args[first], args[second], output)
        if name == "_cdist_forward":
            rows, columns = (self._or_real(tensor).any(-1) for tensor in inputs[:2])
            return (rows[..., :, None] & columns[..., None, :]).expand(output.shape)
        if name in _REDUCTIONS:
            return _reduced(call, validities[0] if validities else None, output)
        if name.startswith(_QUERIES):
            if name == "convolution" and validities[0] is not None and not args[6]:
                # padded by hand, it keeps the positions of the batch
                padded = validities[0].shape[2:] != output.shape[2:]
                kept = self.by_shape(output) if padded else None
                return _by_windows(args, validities[0], output) if kept is None else kept
            query = 1 if name == "embedding" else 0
            validity = validities[query] if query < len(validities) else None
            if validity is not None:
                return _taken_over(validity, output)
            # attention over keys of another sequence makes real rows only
            return None if name.startswith(_ATTENTION) else self.by_shape(output)
        known = [
            (tensor, validity)
            for tensor, validity in zip(inputs, validities, strict=True)
            if validity is not None
        ]
        same_shape: list[Tensor | None] = [
            validity for tensor, validity in known if tensor.shape == output.shape
        ]
        if same_shape:
            return _intersection(same_shape, output.shape)
        for _, validity in known:
            taken = _taken_over(validity, output)
            if taken is not None:
                return taken
        return self.by_shape(output)

    def _is_loop_over_positions(self, validities: list[Tensor | None]) -> bool:
        """Whether the positions of a sequence, which were walked one by one, become one sequence again."""
        steps = {mask.shape[1] for mask in self.masks if mask.ndim == 2}
        return len(validities) in steps and all(validity is None for validity in validities)

    def _is_filled_up(self, source: Tensor, output: Tensor) -> bool:
        """Whether what was cut off along the sequence, or became fewer, is put at the positions of the batch again."""
        grown = [after for before, after in zip(source.shape, output.shape, strict=True) if before < after]
        return len(grown) == 1 and any(mask.ndim == 2 and mask.shape[1] == grown[0] for mask in self.masks)

    def _at_its_positions(self, validities: list[Tensor | None], output: Tensor) -> Tensor | None:
        """The validity of an operand that is a mask of the batch, where another one was moved along the sequence.

        What is computed at a position that is real belongs to it: with a neighbour that is not real it is mixed.
        """
        shape = output.shape
        known = [validity for validity in validities if validity is not None]
        if len(known) < 2 or any(validity.shape[:2] != shape[:2] for validity in known):
            return None
        known = [validity.expand(shape) for validity in known]
        laid = [  # channels may stand before the positions
            expanded(mask, shape) if mask.shape == shape[:2] else _shaped(mask, output)
            for mask in self.masks
            if mask.ndim == 2
        ]
        at_positions = [mask.to(output.device) for mask in laid if mask is not None]
        own = [s for s in known if any(torch.equal(s, mask) for mask in at_positions)]
        return own[0] if own and len(own) < len(known) else None

    def _by_samples(
        self, inputs: list[Tensor], validities: list[Tensor | None], output: Tensor
    ) -> Tensor | None:
        """Where masks are those of whole samples: a sample of the result is real if all of it was in every input."""
        if not self.masks or any(mask.ndim != 1 for mask in self.masks) or not output.ndim:
            return None
        rows = len(self.masks[0])
        known = [
            validity.flatten(1).all(1)
            for tensor, validity in zip(inputs, validities, strict=True)
            if validity is not None and tensor.ndim > 1 and tensor.shape[0] == rows == output.shape[0]
        ]
        if not known:
            return None
        return expanded(torch.stack(known).all(0), output.shape)

    def _or_real(self, tensor: Tensor) -> Tensor:
        validity = self.get(tensor)
        return (
            torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device) if validity is None else validity
        )

    def _copied(self, call: Operated) -> list[Tensor | None] | None:
        """Run a copy on the validities: constants are real, indices stay what they are."""
        args, kwargs = call.args, call.kwargs
        if call.facts.name == "copy_":
            validity = self.get(args[1])
            return [None if validity is None else validity.expand(args[0].shape)]
        carriers = {id(tensor) for tensor in tensors_in(args[:1])}  # of entries, not of positions or a mask
        validity_args, validity_kwargs = mapped(
            lambda tensor: self._or_real(tensor) if id(tensor) in carriers else tensor, (args, kwargs)
        )
        if "dtype" in validity_kwargs:
            validity_kwargs = {**validity_kwargs, "dtype": torch.bool}
        if call.facts.name == "constant_pad_nd":
            validity_args = (*validity_args[:2], True)
        try:
            copied = [output.bool() for output in tensors_in(call.func(*validity_args, **validity_kwargs))]
        except (RuntimeError, NotImplementedError):
            return None
        return [self._chosen_by(args, validity) for validity in copied]

    def _chosen_by(self, args: Any, validity: Tensor) -> Tensor:
        """An entry that was chosen by an index that is not real is not real either."""
        for tensor in tensors_in(args[1:]):
            own = self.get(tensor)
            if own is not None and validity.shape[: own.ndim] == own.shape:
                validity = validity & expanded(own, validity.shape)
        return validity

    def _product(self, first: Tensor, second: Tensor, output: Tensor) -> Tensor | None:
        """A pair of real entries makes a result real; what does not vary along an axis is looked at once."""
        left, right = self.get(first), self.get(second)
        if left is None and right is None:
            return None
        if right is None and second.ndim > 1:
            return self._or_real(first).any(-1, keepdim=True).expand(output.shape)
        if left is None and first.ndim > 1 < second.ndim:
            return self._or_real(second).any(-2, keepdim=True).expand(output.shape)
        left, right = self._or_real(first), self._or_real(second)
        if first.ndim > 1 < second.ndim:
            left, right = _once(left, -2), _once(right, -1)
            inner = _once(left, -1), _once(right, -2)
            if inner[0].shape[-1] == inner[1].shape[-2] == 1:
                left, right = inner
        return (torch.matmul(left.float(), right.float()) > 0).expand(output.shape)

    def by_shape(self, output: Tensor) -> Tensor | None:
        """The mask, if an axis has the size of the batch and others that of the sequence."""
        validities = (_shaped(mask, output) for mask in self.masks)
        return next((validity for validity in validities if validity is not None), None)


def _once(validity: Tensor, axis: int) -> Tensor:
    """One entry along an axis if all are alike."""
    first = validity.narrow(axis, 0, min(1, validity.shape[axis]))
    return first if bool((validity == first).all()) else validity


def _taken_over(validity: Tensor, output: Tensor) -> Tensor | None:
    """The validity, if it depends only on leading dimensions that the output shares."""
    while validity.ndim and validity.numel() and bool((validity == validity[..., :1]).all()):
        validity = validity[..., 0]
    if validity.ndim == 0 or output.shape[: validity.ndim] != validity.shape:
        return None
    return expanded(validity, output.shape)


def _reduced(call: Operated, validity: Tensor | None, output: Tensor) -> Tensor | None:
    if validity is None or output.ndim == 0:
        return None
    index = 2 if call.facts.name in _SECOND_ARGUMENT else 1
    axes = call.kwargs.get("dim", call.args[index] if len(call.args) > index else None)
    axes = [axes] if isinstance(axes, int) else axes
    if not isinstance(axes, (list, tuple)) or not all(isinstance(axis, int) for axis in axes):
        return None
    for axis in axes:
        validity = validity.any(axis, keepdim=True)
    if output.ndim == validity.ndim:
        return validity.expand(output.shape)
    return validity.squeeze([axis % validity.ndim for axis in axes]).reshape(output.shape)


def _by_windows(args: Any, validity: Tensor, output: Tensor) -> Tensor:
    """A convolution keeps positions, or else a position is real if its whole window is."""
    weight, _, stride, padding, dilation = args[1:6]
    positions = validity.any(1, keepdim=True)
    if positions.shape[2:] != output.shape[2:]:
        window = torch.ones((1, 1, *weight.shape[2:]), device=weight.device)
        missing = torch.convolution(
            (~positions).float(), window, None, stride, padding, dilation, False, [0] * len(stride), 1
        )
        reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        if len(stride) == 1 and stride[0] == 1 and list(padding) == reach:
            # padded for a causal one: each position ends its own window, and what comes after the last is cut off
            positions = torch.cat([positions, missing[..., positions.shape[2] :] == 0], 2)
        else:
            positions = missing == 0
    return positions.expand(output.shape)


def _intersection(validities: list[Tensor | None], shape: torch.Size) -> Tensor | None:
    validity: Tensor | None = None
    for other in validities:
        if other is not None:
            validity = other if validity is None else validity & other
    return validity if validity is None else validity.expand(shape)


def _entries(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // max(1, tensor.element_size())


def _view_key(tensor: Tensor) -> tuple[Any, ...]:
    return key_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _write(view: Tensor, validity: Tensor) -> None:
    if 0 in view.stride() and view.numel():
        # one entry of an expanded view stands for many: it is real if one of them is
        for axis, stride in enumerate(view.stride()):
            if stride == 0:
                validity = validity.any(axis, keepdim=True)
                view = view.narrow(axis, 0, 1)
    view.copy_(validity)
