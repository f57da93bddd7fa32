"""What an examination found: kinds, where, how much, and what to write instead."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from maskgrad.doctor.frames import Place

__all__ = ["KINDS", "Finding", "Note"]

#: every kind of finding in one sentence
KINDS = {
    "padding-leak": "the values of the padding change the loss or a gradient",
    "nan-under-mask": "NaN or infinity in the padding reaches the loss or a gradient",
    "padding-length": "more padding, or none, changes the loss or a gradient",
    "denominator": "the result depends on how the batch is split into parts",
    "empty-row": "a sample that is all padding gives NaN",
    "sample-coupling": "a sample changes the result of another one",
    "order": "the order of the samples changes the loss or a gradient",
    "document-leak": "another document of the pack changes the loss of a document, or a gradient",
    "document-alone": "a document gives different results packed and alone",
    "future-leak": "later positions change the loss of earlier ones, or a gradient",
    "batch-bits": "a sample gives bitwise different results in a batch and alone",
    "densified-gradient": "a sparse gradient is turned into a dense one",
    "silent-hook": "a registered hook was not called",
    "unused-parameter": "a parameter does not influence the loss",
    "zero-gradient": "the gradient of a parameter is zero because everything that reached it was masked",
    "stale-rows": "rows of a table were read before their pending updates",
}


@dataclass(frozen=True)
class Finding:
    """One mistake: the line of the user's program, the message, and a fix.

    Attributes:
        kind: one of the kinds that the page "Is my masking right?" lists.
        message: what was changed and what followed, in one or two sentences.
        file: path of the source file, empty if no line is known.
        line: number of the line, 0 if none is known.
        code: the text of the line.
        remedy: code to write instead, with maskgrad and without.
        module: dotted name of the running module.
        operation: the first PyTorch operation whose real entries depend on padding.
        affected: the size of the effect, by name, such as the change of the loss.
        package_file: path of a file of an installed package, if the line calls one: the innermost that was running.
        package_line: number of the line in it.
    """

    kind: str
    message: str
    file: str = ""
    line: int = 0
    code: str = ""
    remedy: str = ""
    module: str = ""
    operation: str = ""
    affected: dict[str, Any] = field(default_factory=dict)
    package_file: str = ""
    package_line: int = 0

    @classmethod
    def at(cls, where: Any, kind: str, message: str, **rest: Any) -> Finding:
        """A finding at a line of the program, with what to write instead.

        Args:
            where: a ``Place``, None if it is unknown, or an operation that was seen (its attributes ``place`` and
                ``operation`` are read, and ``module`` if it has one).
            kind: one of ``KINDS``.
            message: what was changed and what followed.
            rest: further attributes.
        """
        known: dict[str, Any] = {}
        if where is not None and not isinstance(where, Place):
            known = {"operation": where.operation, "module": getattr(where, "module", "")}
        known |= {"remedy": _remedy_for(kind, known.get("operation", "")), **rest}
        place = where if where is None or isinstance(where, Place) else where.place
        if place is None:
            return cls(kind, message, **known)
        package: dict[str, Any] = {"package_file": place.package_file, "package_line": place.package_line}
        return cls(kind, message, place.file, place.line, place.code, **(package | known))

    def at_package(self) -> Finding:
        """The finding at the line of the package; the same if there is none."""
        if not self.package_file:
            return self
        place = Place(self.package_file, self.package_line)
        called = f"{self.message} (called at {self.file}:{self.line})"
        return replace(
            self,
            message=called,
            file=place.file,
            line=place.line,
            code=place.code,
            package_file="",
            package_line=0,
        )

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "(no line is known)"
        lines = [f"{self.kind} at {where}"]
        if self.code:
            lines.append(f"    {self.code}")
        if self.package_file:
            place = Place(self.package_file, self.package_line)
            short = re.split(r"[\\/](?:site|dist)-packages[\\/]", place.file)[-1]
            lines.append(f"  in {short}:{place.line}: {place.code}")
        if self.module:
            lines.append(f"  in module {self.module}")
        lines.append(f"  {self.message}")
        if self.remedy:
            lines.append("  instead:")
            lines += [f"    {line}" for line in self.remedy.splitlines()]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Note:
    """A remark that is not a finding; ``about`` names its experiment."""

    about: str
    message: str
    file: str = ""
    line: int = 0

    @classmethod
    def at(cls, place: Place | None, about: str, message: str) -> Note:
        """A note about a line of the program."""
        return cls(about, message, place.file, place.line) if place else cls(about, message)

    def __str__(self) -> str:
        where = f" ({self.file}:{self.line})" if self.file else ""
        return f"{self.about}: {self.message}{where}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


_BY_OPERATION = {
    ("mean",): (
        "mg.masked(x, mask[..., None]).mean(dim=1).filled(0.)",
        "(x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)",
    ),
    ("sum", "nansum", "cumsum"): (
        "mg.masked(x, mask[..., None]).sum(dim=1).filled(0.)",
        "x.masked_fill(~mask[..., None], 0.).sum(1)",
    ),
    ("amax", "max", "amin", "min", "argmax", "topk", "sort"): (
        "mg.masked(x, mask[..., None]).amax(dim=1).filled(0.)",
        "x.masked_fill(~mask[..., None], float('-inf')).amax(1)",
    ),
    ("std", "var", "var_mean", "std_mean"): (
        "mg.masked(x, mask[..., None]).std(dim=1)",
        "n = mask.sum(1, keepdim=True); m = (x * mask[..., None]).sum(1) / n   # and so on, over real positions",
    ),
    ("select", "unbind", "flip", "roll"): (
        "mg.from_lengths(x, lengths).last()",
        "x[torch.arange(len(x)), lengths - 1]",
    ),
    ("_softmax", "_log_softmax", "logsumexp"): (
        "mg.masked(scores, mask[:, None, :]).softmax(-1).filled(0.)",
        "scores.masked_fill(~mask[:, None, :], float('-inf')).softmax(-1)",
    ),
    ("bmm", "baddbmm", "_safe_softmax", "_scaled_dot_product", "_flash_attention", "_efficient_attention"): (
        "F.scaled_dot_product_attention(q, mg.masked(k, mask), mg.masked(v, mask))",
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])   # True = may be read",
    ),
    ("native_batch_norm", "cudnn_batch_norm", "batch_norm", "_native_batch_norm"): (
        "norm(mg.masked(x, mask[:, None, :]))        # statistics over real entries, with torch's own layer",
        "out = x.clone(); out[mask] = norm(x[mask])",
    ),
    ("convolution", "max_pool", "avg_pool", "_adaptive_avg_pool", "mean_pool"): (
        "mg.nn.functional.conv1d(mg.masked(x, mask[:, None, :]), weight)",
        "conv(x.masked_fill(~mask[:, None, :], 0.))",
    ),
    ("mkldnn_rnn_layer", "_cudnn_rnn", "_thnn_fused"): (
        "rnn(mg.from_lengths(x, lengths, layout=torch.jagged))",
        "rnn(pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False))",
    ),
    ("nll_loss", "_log_softmax_backward"): (
        "F.cross_entropy(mg.masked(logits, mask[..., None]).flatten(0, 1), labels.flatten())",
        "F.cross_entropy(logits.flatten(0, 1), labels.masked_fill(~mask, -100).flatten())   # ignore_index=-100",
    ),
    ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "_ctc_loss"): (
        "F.mse_loss(mg.masked(prediction, mask), target)",
        "F.mse_loss(prediction[mask], target[mask])",
    ),
    ("linalg_vector_norm", "norm"): (
        "mg.masked(x, mask[..., None]).norm()",
        "x.masked_fill(~mask[..., None], 0.).norm()",
    ),
}
#: with maskgrad, and without where that is another line
_BY_KIND: dict[str, tuple[str, ...]] = {
    "padding-leak": ("x = mg.masked(x, mask)", "x = x.masked_fill(~mask, 0.)   # divide by mask.sum()"),
    "nan-under-mask": (
        "loss = F.mse_loss(prediction, mg.from_nan(target))",
        "safe = torch.where(mask, x, 1.)   # before the operation that makes NaN, not after it",
    ),
    "padding-length": ("mg.masked(x, mask[..., None]).mean(dim=1)", "x.sum(1) / mask.sum(1)   # not by x.shape[1]"),
    "denominator": (
        "mg.GradientAccumulator(model)   # if samples are compared: mg.coupled_backward(model, parts, loss)",
        "loss = loss_sum / tokens_of_the_whole_batch   # one denominator for all parts and ranks",
    ),
    "empty-row": (
        "mg.masked(scores, mask).softmax(-1).filled(0.)",
        "mask = mask | ~mask.any(-1, keepdim=True)   # an empty row attends to all keys; exclude it later",
    ),
    "sample-coupling": (
        "nn.MultiheadAttention(..., batch_first=True)   # or one mask per packed sequence",
        "mask = segments[:, :, None] == segments[:, None, :]",
    ),
    "document-leak": (
        "mask = seq_idx[:, :, None] == seq_idx[:, None, :]   # True = may be read; attn_mask=mask[:, None]",
        "reset states and end windows where seq_idx changes; the first label of a document is -100",
    ),
    "document-alone": (
        "positions = torch.arange(length)   # restarts in each document",
        "loss = loss_sum / labels_that_count   # not the length of the pack",
    ),
    "batch-bits": (
        "torch.cat([model(x[None]) for x in batch])   # sample by sample, or in batches of a fixed size",
        "torch.testing.assert_close(alone, among)   # a tolerance instead of bits",
    ),
    "future-leak": (
        "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "F.conv1d(F.pad(x, (width - 1, 0)), weight)   # windows that end at their position",
    ),
    "order": ("outputs = outputs[order.argsort()]   # restore the order of the batch",),
    "densified-gradient": (
        "mg.optim.Adam(model.parameters())   # takes sparse and dense gradients together",
        "untie the weight of the embedding; no penalty on the whole table",
    ),
    "silent-hook": ("call module(x), not module.forward(x)",),
    "unused-parameter": ("parameter.requires_grad_(False)", "remove the module, or let the loss depend on it"),
    "zero-gradient": ("use the mask with True = real",),
    "stale-rows": ("optimizer.flush()   # before the table is read",),
}  # fmt: skip


def _remedy_for(kind: str, operation: str) -> str:
    code: tuple[str, ...] = _BY_KIND[kind]
    if operation and kind in ("padding-leak", "padding-length"):
        code = next((pair for names, pair in _BY_OPERATION.items() if operation.startswith(names)), code)
    if len(code) > 1 and "#" not in code[1]:
        code = (code[0], f"{code[1]}   # without maskgrad")
    return "\n".join(code)
