"""Faults in the type, and in functions on plain tensors."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        "a gradient that is set keeps what is under the mask",
        "masked_tensor/autograd.py",
        "    return torch.where(pattern.mask, plain, 0) if isinstance(pattern, BooleanPattern) else plain",
        "    return plain",
    ),
    Fault(
        "a hook takes away the gradient of other uses",
        "masked_tensor/autograd.py",
        "            return torch.where(pattern.mask, values, grad)",
        "            return values",
    ),
    Fault(
        "backward begins with what lies under the mask of its gradient",
        "masked_tensor/autograd.py",
        "        seed = gradient.filled(0) if isinstance(gradient, MaskedTensor) else gradient",
        "        seed = gradient._values if isinstance(gradient, MaskedTensor) else gradient",
    ),
    Fault(
        "a slice with any entry is complete",
        "masked_tensor/completeness.py",
        "        mask = few.all(dims, keepdim=True) if few.ndim else few",
        "        mask = few.any(dims, keepdim=True) if few.ndim else few",
    ),
    Fault(
        "a stored group with any entry is complete",
        "masked_tensor/completeness.py",
        "(groups.count() == math.prod([sizes[d] for d in dims]))",
        "(groups.count() > 0)",
    ),
    Fault(
        "drop_first gives the beginning of each sequence",
        "masked_tensor/sequence_ends.py",
        '    at_the_end = name in ("last", "drop_first")',
        '    at_the_end = name in ("last",)',
    ),
    Fault(
        "a leaf that requires grad is written in place",
        "masked_tensor/writing.py",
        "    if values.requires_grad and values.is_leaf and torch.is_grad_enabled():",
        "    if values.requires_grad and values.is_leaf and not torch.is_grad_enabled():",
    ),
    Fault(
        "the graph saves the target of a write, and no copy",
        "masked_tensor/writing.py",
        "    return (MaskedTensor(target._values.clone(), target._pattern), *args[1:])",
        "    return args",
    ),
    Fault(
        "a mask that was lent is written without moving",
        "masked_tensor/writing.py",
        "        storage.move(mask)\n",
        "        storage.copy_before_write = False\n",
    ),
    Fault(
        "the norm of nothing is 0 for negative orders, too",
        "functional/__init__.py",
        "    return reduced(found, dim, inf if ord < 0 else 0)",
        "    return reduced(found, dim, 0)",
        "tests/unit/functional",
    ),
    Fault(
        "logaddexp exchanges its masks",
        "functional/__init__.py",
        'entries_of(input, input_mask, dtype, "input_mask"),',
        'entries_of(input, other_mask, dtype, "input_mask"),',
        "tests/unit/functional src/maskgrad/functional/__init__.py",
    ),
)
