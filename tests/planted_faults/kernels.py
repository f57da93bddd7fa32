"""Faults in kernels: references, updates, masks that repeat."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        "a mean divides by the size, not by the number of specified entries",
        "kernels/reductions/__init__.py",
        "mean = total / count.clamp_min(1)",
        "mean = total / max(values.numel() // max(total.numel(), 1), 1)",
    ),
    Fault(
        "softmax fills with 0 where -inf is needed",
        "kernels/softmax/__init__.py",
        "safe, function = filled(values, mask, -torch.inf)",
        "safe, function = filled(values, mask, 0)",
    ),
    Fault(
        "softmax fills a row without entries with -inf",
        "kernels/softmax/__init__.py",
        "return filled(safe, present.expand(safe.shape), 0)",
        "return safe",
    ),
    Fault(
        "the gradient of a variance reaches unspecified entries",
        "kernels/variance/__init__.py",
        "return cleared(slope, mask).to(values.dtype)",
        "return slope.to(values.dtype)",
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
        "Adam corrects its first moment as after one step, always",
        "kernels/updates/formulas.py",
        "lr / remaining(betas[0], step))",
        "lr / (1 - betas[0]))",
    ),
    Fault(
        "a mean of halves is added up in half precision",
        "kernels/reductions/__init__.py",
        "    wide = torch.float32 if out in HALVES else out",
        "    wide = out",
    ),
    Fault(
        "the gradient of a mean is not divided by the number of entries",
        "kernels/reductions/__init__.py",
        "_spread(ctx, wide / count.clamp(min=1), mask)",
        "_spread(ctx, wide, mask)",
    ),
    Fault(
        "a mask that repeats is counted in its smallest shape alone",
        "kernels/reductions/__init__.py",
        "            count = count * mask.shape[d]",
        "            count = count * few.shape[d]",
    ),
    Fault(
        "the logsumexp of a segment is not shifted back",
        "kernels/softmax/__init__.py",
        "total, 1).log() + shift",
        "total, 1).log()",
        "tests/unit/kernels/test_softmax.py",
    ),
    Fault(
        "each of several maxima gets the whole gradient",
        "kernels/extrema/__init__.py",
        "hit.sum(ctx.dim, True, dtype=wide.dtype).clamp(min=1)",
        "1",
    ),
    Fault(
        "masked entries count among several maxima",
        "kernels/extrema/__init__.py",
        "        hit = cleared(hit, mask)\n",
        "",
    ),
    Fault(
        "the position of a maximum may be that of an unspecified entry",
        "kernels/extrema/__init__.py",
        "    if not (can_read(is_specified) and all_of(is_specified)):",
        "    if not can_read(is_specified):",
    ),
    Fault(
        "for a norm of negative order the mask is filled with 0",
        "kernels/norms/__init__.py",
        "    neutral = 0.0 if ord >= 0 else math.inf",
        "    neutral = 0.0",
    ),
    Fault(
        "the gradient of a distance by its target has the sign of the other",
        "kernels/losses/__init__.py",
        "return by_input, -by_input if",
        "return by_input, by_input if",
    ),
    Fault(
        "a batch is normalised by the corrected variance",
        "kernels/normalization/__init__.py",
        "else square) / count.clamp(min=1)",
        "else square) / (count - 1).clamp(min=1)",
    ),
    Fault(
        "rows of halves are merged in half precision",
        "kernels/coalescing/__init__.py",
        "    wide = values.to(_WIDER.get(values.dtype, values.dtype))",
        "    wide = values",
    ),
    Fault(
        "a maximum of merged rows counts the 0 with which it starts",
        "kernels/coalescing/__init__.py",
        'float("nan") if values.is_floating_point() else 0)',
        "0)",
    ),
    Fault(
        "compiled updates are no new versions of the tables",
        "kernels/updates/__init__.py",
        "    torch.autograd.graph.increment_version(given)\n",
        "    pass\n",
        "tests/unit/kernels/test_updates.py tests/unit/optim/test_rows.py",
    ),
    Fault(
        "decoupled decay forgets the learning rate",
        "kernels/updates/formulas.py",
        "        param.mul_(1 - lr * weight_decay)",
        "        param.mul_(1 - weight_decay)",
        "tests/unit/optim/test_optimizers.py",
    ),
    Fault(
        "a query without keys gives NaN",
        "kernels/attention/__init__.py",
        "    mask = taking_part | ~has_keys",
        "    mask = taking_part",
    ),
    Fault(
        "causal attention does not see its own position",
        "kernels/attention/frames.py",
        "[:, None] >= position",
        "[:, None] > position",
    ),
    Fault(
        "masks that repeat are intersected entry by entry",
        "kernels/smallest.py",
        "    return _both(smallest(a), smallest(b)).expand(shape)",
        "    return a & b",
    ),
)
