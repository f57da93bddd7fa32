"""Names that `mg` does not have: those of other libraries, of its own modules, and misspelt ones."""

from __future__ import annotations

import difflib
import sys

__all__ = ["instead_of_name"]

#: What to write for names of torch.masked, numpy.ma, torch.nested, and for constructors that one would expect.
WRITTEN = {
    **dict.fromkeys(
        ("masked_tensor", "as_masked_tensor", "masked_array", "MaskedArray"), "mg.masked(data, mask)"
    ),
    **dict.fromkeys(("from_mask", "mask", "tensor", "as_tensor"), "mg.masked(data, mask)"),
    **dict.fromkeys(
        ("pad_sequence", "pad_sequences", "nested_tensor", "from_list"), "mg.from_sequences(sequences)"
    ),
    **dict.fromkeys(("from_padded", "pack_padded_sequence"), "mg.from_lengths(data, lengths)"),
    **dict.fromkeys(("masked_invalid", "masked_nan"), "mg.from_nan(data)"),
    **dict.fromkeys(("from_dataframe", "from_df"), "mg.from_pandas(frame)"),
    "examine": "mg.doctor.examine(step, batch)",
    "export": "mg.onnx.export(model, inputs, path)",
}
#: Modules with names of their own, in the order of a search.
PARTS = ("functional", "nn", "optim", "amp", "interop", "metrics", "sparse")


def instead_of_name(name: str) -> str:
    """Return what to write instead of ``mg.name``; empty if nothing is near."""
    if name.startswith("_"):
        return ""
    if name in WRITTEN:
        return WRITTEN[name]
    package = sys.modules["maskgrad"]
    function = name.removeprefix("masked_").removeprefix("nan")
    if function in package.functional.__all__:
        return f"mg.functional.{function}(data, mask=mask), or mg.masked(data, mask).{function}()"
    if hasattr(sys.modules["torch"].nn.functional, function):
        return f"torch.nn.functional.{function}, which takes MaskedTensors"
    for part in PARTS:
        if name in getattr(package, part).__all__:
            return f"mg.{part}.{name}"
    near = difflib.get_close_matches(name, package.__all__, 1, 0.75)
    return f"mg.{near[0]}" if near else ""
