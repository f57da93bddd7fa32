"""Faults such as are made: where, what stands there, what is planted in its place, and what it breaks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["FAULTS", "ROOT", "SOURCES", "Fault"]

ROOT = Path(__file__).parents[2]
SOURCES = Path("src") / "maskgrad"


class Fault(NamedTuple):
    """One fault; ``old`` occurs exactly once in ``file``, and ``new`` takes its place."""

    name: str
    file: str
    old: str
    new: str


FAULTS: tuple[Fault, ...] = (
    Fault(
        "a mean divides by the size, not by the number of specified entries",
        "kernels/reductions/__init__.py",
        "(total / count.clamp(min=1)).to(out), count",
        "(total / max(values.numel() // max(total.numel(), 1), 1)).to(out), count",
    ),
    Fault(
        "softmax fills with 0 where -inf is needed",
        "kernels/softmax/__init__.py",
        "torch.where(present, -torch.inf, 0.0)",
        "torch.where(present, 0.0, 0.0)",
    ),
    Fault(
        "softmax fills a row without entries with -inf",
        "kernels/softmax/__init__.py",
        "torch.where(present, -torch.inf, 0.0)",
        "torch.where(present, -torch.inf, -torch.inf)",
    ),
    Fault(
        "the gradient of a variance reaches unspecified entries",
        "kernels/variance/__init__.py",
        "return torch.where(mask & enough, grad * factor * deviation, 0).to(values.dtype)",
        "return (grad * factor * deviation).to(values.dtype)",
    ),
    Fault(
        "a variance subtracts 1 whatever the correction is",
        "kernels/variance/__init__.py",
        "return (count - int(correction))",
        "return (count - 1)",
    ),
    Fault(
        "an elementwise result is specified where one operand is",
        "kernels/smallest.py",
        "        return a & b",
        "        return a | b",
    ),
    Fault(
        "an averaged loss divides by the number of all positions",
        "semantics/reductions.py",
        "return total / count if average else total",
        "return total / values.numel() if average else total",
    ),
    Fault(
        "a look finds everything harmless",
        "semantics/entries.py",
        "return bool(cmath.isfinite(total.item()))",
        "return True",
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
        "return permute(x, order_after(function, len(x.shape), *args, **kwargs))",
        "return permute(x, [1, 0, *range(2, len(x.shape))])",
    ),
    Fault(
        "CSC is read as CSR",
        "patterns/compressed.py",
        "pair = (lines, positions) if self._layout in BY_ROW else (positions, lines)",
        "pair = (lines, positions)",
    ),
    Fault(
        "a layout without a rule computes on stored values alone",
        "semantics/stored/registry.py",
        "        return by_position(operation)\n    return None",
        "        return by_position(operation)\n    return elementwise",
    ),
    Fault(
        "the tangent of a masked gradient is not masked",
        "gradients/gradient_surgery.py",
        "passing: Tensor = fill(tangent, ctx.saved_tensors[0], 0)",
        "passing: Tensor = tangent.clone()",
    ),
    Fault(
        "duplicates are merged in half precision",
        "gradients/gradient.py",
        "values = self.values.to(widened_dtype(self.values.dtype))",
        "values = self.values",
    ),
    Fault(
        "the norm of gradients is taken before duplicates are merged",
        "gradients/clipping.py",
        'merged = read(gradient, "a gradient").wide().merged()',
        'merged = read(gradient, "a gradient").wide()',
    ),
    Fault(
        "Adam corrects its first moment as after one step, always",
        "kernels/updates/formulas.py",
        "lr / remaining(betas[0], step))",
        "lr / (1 - betas[0]))",
    ),
    Fault(
        "states are read one row too late",
        "kernels/updates/__init__.py",
        "[_widened(table.index_select(0, rows)) for table in used]",
        "[_widened(table.index_select(0, (rows + (table is not used[0])) % len(table))) for table in used]",
    ),
    Fault(
        "a row that is behind is brought up to date but for one step",
        "optim/lazy/linear.py",
        "column = since.cpu().numpy()",
        "column = (since.cpu().numpy() + 1).clip(max=self.steps)",
    ),
    Fault(
        "the loss scaler does not look at merged gradients",
        "amp/unscaling.py",
        "        groups[tensor.device, tensor.dtype, still_scaled][key] = tensor",
        "        if still_scaled:\n            groups[tensor.device, tensor.dtype, still_scaled][key] = tensor",
    ),
    Fault(
        "the number of entries is that of one rank",
        "distributed/reductions.py",
        "total, number = global_sums(ranks, [total, number], gradients, postponed.error)",
        "(total,) = global_sums(ranks, [total], gradients, postponed.error)",
    ),
    Fault(
        "a file for ONNX gives its outputs in another order",
        "export/ports.py",
        "        tensors += parts",
        "        tensors = parts + tensors",
    ),
)
