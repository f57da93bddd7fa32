"""Faults in mixed precision, and in several processes."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        "the loss scaler does not look at merged gradients",
        "amp/unscaling.py",
        "        groups[tensor.device, tensor.dtype, still_scaled][key] = tensor",
        "        if still_scaled:\n            groups[tensor.device, tensor.dtype, still_scaled][key] = tensor",
    ),
    Fault(
        "the number of entries is that of one rank",
        "distributed/reductions.py",
        "total, number = global_sums(ranks, [total, number], postponed.error)",
        "(total,) = global_sums(ranks, [total], postponed.error)",
    ),
    Fault(
        "gradients that a scale below 1 enlarges are not looked at again",
        "amp/unscaling.py",
        "and in_place and bool(factor > 1):",
        "and in_place and bool(factor < 1):",
    ),
    Fault(
        "halves are unscaled in place",
        "amp/unscaling.py",
        "            and gradient.dtype not in HALVES  # it might overflow\n",
        "",
    ),
    Fault(
        "the dtype of a gradient is not restored after the step",
        "amp/grad_scaler.py",
        "                restore_dtypes(self._per_optimizer_states[id(optimizer)].pop(_WIDENED, ()))",
        "                self._per_optimizer_states[id(optimizer)].pop(_WIDENED, ())",
    ),
    Fault(
        "a sum over ranks is written into the rank's own part",
        "distributed/global_sums.py",
        "        total = total.clone() if total.data_ptr() == part.data_ptr() else total\n",
        "",
    ),
    Fault(
        "each rank has a variance of its own",
        "distributed/batch_normalization.py",
        "        (square,) = self._added_up((deviation * deviation).sum(dims))",
        "        square = (deviation * deviation).sum(dims)",
    ),
    Fault(
        "a layer with sparse gradients counts as dense",
        "distributed/partition.py",
        '    if getattr(owner, "sparse", False):\n        return False',
        '    if getattr(owner, "sparse", False):\n        return True',
    ),
)
