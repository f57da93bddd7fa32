"""Who is compared with maskgrad, and who of them is here."""

from __future__ import annotations

import functools
import os
import shutil

from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require

__all__ = ["PEERS", "YARDSTICKS", "why_absent"]

#: name -> what it is
PEERS = {
    "torch.masked": "PyTorch's prototype of masked tensors and its functions",
    "where": "what one writes by hand: torch.where with a neutral number, then the dense operation",
    "compiled-where": "the same under torch.compile",
    "indexing": "x[mask] first, then the dense operation on what is left",
    "dense": "the dense operation on all entries; it reads no mask, and is only a yardstick",
    "memory-copy": "copying as many bytes as the operation has to read and write; a yardstick",
    "torch.sparse": "PyTorch on sparse COO tensors",
    "torch.sparse-csr": "PyTorch on sparse CSR tensors",
    "scipy": "scipy.sparse",
    "bare-values": "the operation on the stored values alone, without a pattern; a yardstick",
    "torch.optim": "PyTorch's optimizer on a sparse gradient (SparseAdam for Adam)",
    "torch.optim-dense": "PyTorch's optimizer on a dense gradient",
    "torch.optim-fused": "PyTorch's optimizer on dense gradients, fused=True",
    "torch.optim-foreach": "PyTorch's optimizer on dense gradients, foreach=True",
    "torch.optim-single": "PyTorch's optimizer on dense gradients, foreach=False: its default on a CPU",
    "double-loop": "torch.autograd.grad for each output of each sample",
    "is-grads-batched": "torch.autograd.grad with all outputs as a batch of cotangents",
    "vmap-jacrev": "torch.func on the model in functional form, for one sample",
    "vmap-grad": "torch.func on the model in functional form, for one sample's loss",
    "opacus": "Opacus' hooks for gradients per sample",
    "sample-loop": "torch.autograd.grad for one sample after the other",
    "by-hand": "the model with masks written by hand, as a careful user does without maskgrad",
    "plain-step": "the step as it is, forward and backward; a yardstick",
    "fbgemm": "FBGEMM's embedding tables, which update in the backward pass",
}

#: those that do less than the task
YARDSTICKS = frozenset(("dense", "memory-copy", "bare-values", "plain-step"))


@functools.cache
def why_absent(peer: str) -> str:
    """Why ``peer`` cannot be measured on this machine; empty if it can."""
    if peer == "scipy":
        return _why_not_imported("scipy.sparse")
    if peer == "opacus":
        return _why_not_imported("opacus")
    if peer == "fbgemm":
        return _why_not_imported("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    if peer == "compiled-where" and shutil.which(os.environ.get("CXX", "g++")) is None:
        return "torch.compile needs a C++ compiler: install g++, or name one in the environment variable CXX"
    return ""


def _why_not_imported(module: str) -> str:
    try:
        require(module, "the comparison", "bench")
    except MissingDependencyError as error:
        return str(error)
    return ""
