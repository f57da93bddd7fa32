"""Faults in gradients of any kind, and in sparse tensors."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        "duplicates are merged in half precision",
        "gradients/gradient.py",
        "values = self.values.to(widened_dtype(self.values.dtype))",
        "values = self.values",
    ),
    Fault(
        "the norm of gradients is taken before duplicates are merged",
        "gradients/clipping.py",
        "part if part.rows is None else part.wide().merged()",
        "part if part.rows is None else part.wide()",
    ),
    Fault(
        "entries outside a gradient's mask are trained",
        "gradients/gradient.py",
        "            mask = trained if self.mask is None else self.mask & trained\n            return replace",
        "            mask = trained\n            return replace",
        "tests/unit/optim/test_trained_entries.py",
    ),
    Fault(
        "a COO gradient is called coalesced, whatever it lists",
        "gradients/gradient.py",
        "is_coalesced=increasing(self.rows), check",
        "is_coalesced=True, check",
    ),
    Fault(
        "frozen entries count in the norm",
        "gradients/clipping.py",
        "counted = one.part.counted(trained_entries(one.param))",
        "counted = one.part.counted(None)",
    ),
    Fault(
        "gradients of halves accumulate in half precision",
        "gradients/accumulated_sums.py",
        "one.to(widened_dtype(one.dtype))",
        "one",
        "tests/unit/gradients/test_accumulation.py",
    ),
    Fault(
        "the state of an accumulator is that of the gradients themselves",
        "gradients/accumulated_sums.py",
        "gradient.detach().clone() for gradient in sums",
        "gradient.detach() for gradient in sums",
        "tests/unit/gradients/test_interrupted_accumulation.py",
    ),
    Fault(
        "the sum of two masked gradients has the entries that both have",
        "gradients/added.py",
        "reduce(torch.logical_or, entries",
        "reduce(torch.logical_and, entries",
    ),
    Fault(
        "frozen entries are trained, and no others",
        "gradients/train_only.py",
        "            torch.where(mask, values, before, out=values)",
        "            torch.where(mask, before, values, out=values)",
    ),
    Fault(
        "a tensor is coalesced if its flag says so",
        "sparse.py",
        "    return t.is_coalesced() and increasing(",
        "    return t.is_coalesced() or increasing(",
        "tests/unit/test_sparse.py",
    ),
)
