"""What to write instead: code, with maskgrad and without, by kind of finding and by operation."""

from __future__ import annotations

from typing import Any

__all__ = ["remedy_for"]

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
_BY_KIND = {
    "padding-leak": ("x = mg.masked(x, mask)", "x = x.masked_fill(~mask, 0.)   # divide by mask.sum()"),
    "nan-under-mask": (
        "loss = F.mse_loss(prediction, mg.from_nan(target))",
        "safe = torch.where(mask, x, 1.)   # before the operation that makes NaN, not after it",
    ),
    "padding-length": ("mg.masked(x, mask[..., None]).mean(dim=1)", "x.sum(1) / mask.sum(1)   # not by x.shape[1]"),
    "denominator": (
        "with mg.GradientAccumulator(model.parameters()) as accumulator: ...   # divides once, by all tokens",
        "loss = loss_sum / tokens_of_the_whole_batch   # one denominator for all parts and ranks",
    ),
    "empty-row": (
        "mg.masked(scores, mask).softmax(-1).filled(0.)",
        "mask = mask | ~mask.any(-1, keepdim=True)   # an empty row reads everything, and is not counted later",
    ),
    "sample-coupling": (
        "nn.MultiheadAttention(..., batch_first=True)   # or one mask per packed sequence",
        "mask = segments[:, :, None] == segments[:, None, :]",
    ),
    "order": ("outputs = outputs[order.argsort()]   # back into the order of the batch",) * 2,
    "densified-gradient": (
        "mg.optim.Adam(model.parameters())   # takes sparse and dense gradients together",
        "keep the embedding of its own: untie the weight, no penalty on the whole table",
    ),
    "silent-hook": ("call module(x), not module.forward(x)", "call module(x), not module.forward(x)"),
    "unused-parameter": (
        "parameter.requires_grad_(False)", "remove the module, or let the loss depend on it",
    ),
    "zero-gradient": ("use the mask with True = real", "use the mask with True = real"),
    "stale-rows": ("optimizer.flush()   # before the table is read", "optimizer.flush()   # before the table is read"),
}  # fmt: skip


def remedy_for(kind: str, event: Any = None) -> str:
    """Two lines of code: with maskgrad, and without."""
    ours, plain = _BY_KIND[kind]
    if event is not None and kind in ("padding-leak", "padding-length"):
        for operations, code in _BY_OPERATION.items():
            if event.operation.startswith(operations):
                ours, plain = code
                break
    if ours == plain:
        return ours
    return f"{ours}\n{plain}   # without maskgrad" if "#" not in plain else f"{ours}\n{plain}"
