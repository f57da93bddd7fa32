"""Faults in layers, metrics, files, doors to other packages, and in the doctor."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

__all__ = ["FAULTS"]

FAULTS: tuple[Fault, ...] = (
    Fault(
        "a file for ONNX gives its outputs in another order",
        "export/ports.py",
        "        tensors += parts",
        "        tensors = parts + tensors",
    ),
    Fault(
        "a table is saved while rows are behind",
        "nn/lookup.py",
        "_save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:\n        self.flush()\n",
        "_save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:\n",
        "tests/unit/nn/test_lookup.py tests/unit/optim/lazy/test_zero_gradients.py",
    ),
    Fault(
        "a convolution fills holes unless told otherwise",
        "nn/convolution.py",
        'specified: Rule = "center", **kwargs',
        'specified: Rule = "any", **kwargs',
    ),
    Fault(
        "merged variances forget how many entries there were",
        "metrics/moments.py",
        "difference**2 * a.number * share",
        "difference**2 * share",
        "tests/unit/metrics/test_mean_and_moments.py",
    ),
    Fault(
        "masks do not matter beside listed places",
        "metrics/alignment.py",
        "        keys = known.nonzero().squeeze(1) if keys is None else keys[known[keys]]",
        "        keys = known.nonzero().squeeze(1) if keys is None else keys",
    ),
    Fault(
        "a file gives what lies under the mask",
        "export/ports.py",
        "of_entries(leaf.filled(False if leaf.dtype == torch.bool else 0), leaf",
        "of_entries(leaf._values, leaf",
        "tests/unit/export/test_ports.py",
    ),
    Fault(
        "gaps between sequences are part of them",
        "interop/nested_tensors.py",
        "parts.lengths().long().cumsum(0), (1, 0))",
        "parts.offsets().long().diff().cumsum(0), (1, 0))",
    ),
    Fault(
        "a SciPy matrix shares memory with the tensor",
        "interop/scipy_matrices.py",
        "    return in_numpy(tensor).copy()",
        "    return in_numpy(tensor)",
    ),
    Fault(
        "fields of as many samples share one pattern",
        "interop/collation.py",
        "*[len(part) for part in parts])",
        "len(parts))",
    ),
    Fault(
        "a slice of lists begins at the first list",
        "interop/columns.py",
        "array.values.slice(array.offset * size, ",
        "array.values.slice(0, ",
        "tests/unit/interop/test_arrow_arrays.py tests/unit/interop/test_lists.py",
    ),
    Fault(
        "rounding is a leak",
        "doctor/case.py",
        "return self.is_single and low < self.relative <= high",
        "return False",
        "tests/unit/doctor/test_rounding.py",
    ),
    Fault(
        "another result is one of other bits",
        "doctor/reshaped.py",
        "return compared[-1] and not same(a, b)",
        "return not same(a, b)",
        "tests/unit/doctor/test_batch_bits.py",
    ),
    Fault(
        "simulated ranks: an average is a sum",
        "simulated_ranks/groups.py",
        'return [one / len(parts) for one in sums] if name == "AVG" else sums',
        "return sums",
        "tests/unit/simulated_ranks/test_groups.py",
    ),
    Fault(
        "simulated ranks draw the same numbers",
        "simulated_ranks/ranks.py",
        "[[partial(_seed, rank)] * bool(rank) for",
        "[[] for",
        "tests/unit/simulated_ranks/test_experiment.py",
    ),
    Fault(
        "simulated ranks: gradients are added after a step",
        "simulated_ranks/ranks.py",
        "{name: torch.stack(each).sum(0) / size for",
        "{name: torch.stack(each).sum(0) for",
        "tests/unit/simulated_ranks/test_experiment.py",
    ),
    Fault(
        "simulated ranks: gradients are added after a backward pass",
        "simulated_ranks/ranks.py",
        "torch.stack([part[place] for part in parts]).sum(0) / self.size",
        "torch.stack([part[place] for part in parts]).sum(0)",
        "tests/doctor/test_across_ranks.py",
    ),
)
