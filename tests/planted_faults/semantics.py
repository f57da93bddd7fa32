"""Faults in what operations mean, and in where entries are stored."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        "entries are multiplied by infinity without a fill",
        "semantics/elementwise.py",
        "and 1e-9 < abs(factor) < 1e9",
        "and abs(factor) > 1e-9",
    ),
    Fault(
        "sums that are not finite are taken for finite",
        "kernels/filling/finite.py",
        "return bool(cmath.isfinite(total.item()))",
        "return True",
        tests="tests/unit/semantics/test_products.py",
    ),
    Fault(
        "unspecified entries are sorted first",
        "semantics/sorting.py",
        "specified_first(mask.gather(dim, by_value), dim)",
        "specified_first(mask.gather(dim, by_value).logical_not(), dim)",
    ),
    Fault(
        "the last two dimensions of a sparse batch are taken for the first two",
        "semantics/stored/views.py",
        "order, sparse = order_after(function, len(input.shape), *args, **kwargs), len(input.sizes)",
        "order, sparse = [1, 0, *range(2, len(input.shape))], len(input.sizes)",
    ),
    Fault(
        "a layout without a rule computes on stored values alone",
        "semantics/stored/registry.py",
        "        return by_position(operation)\n    return None",
        "        return by_position(operation)\n    return elementwise",
    ),
    Fault(
        "CSC is read as CSR",
        "patterns/compressed.py",
        "pair = (lines, positions) if self.layout in BY_ROW else (positions, lines)",
        "pair = (lines, positions)",
    ),
    Fault(
        "a mask that others read is written where it is",
        "patterns/boolean.py",
        "        self.memory = whole.clone()",
        "        self.memory = whole",
        "tests/unit/masked_tensor/test_writing.py tests/unit/masked_tensor/test_memory.py",
    ),
    Fault(
        "a mask of too few dimensions is broadcast",
        "patterns/mask_arguments.py",
        "    if mask.ndim < len(shape) and mask.ndim and mask.shape[-1] != 1:",
        "    if mask.ndim > len(shape):",
    ),
    Fault(
        "coordinates come out in the opposite order",
        "patterns/stored.py",
        "        rows.insert(0, keys % max(size, 1))",
        "        rows.append(keys % max(size, 1))",
    ),
    Fault(
        "height and width of a block are exchanged",
        "patterns/compressed.py",
        "[rows * height + inside[0], columns * width + inside[1]]",
        "[rows * width + inside[0], columns * height + inside[1]]",
    ),
    Fault(
        "batches of as many sequences have the same lengths",
        "patterns/jagged.py",
        "torch.equal(a.offsets, b.offsets)",
        "a.offsets.shape == b.offsets.shape",
        "tests/unit/semantics/jagged",
    ),
)
