"""FBGEMM: tables whose rows are updated in the backward pass, beside a lookup and a step of ours."""

from __future__ import annotations

import importlib.metadata
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.peers import why_absent
from tests.peers.suite import Case, Suite

if why_absent("fbgemm"):  # each version loads beside one PyTorch only
    raise ModuleNotFoundError(why_absent("fbgemm"), name="fbgemm_gpu for this PyTorch")

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

ROWS, WIDTH, STEPS = 11, 4, 5  # FBGEMM wants a multiple of four
#: Ids of each bag, at every step others; FBGEMM reads them without a bag as bags of one.
BAGS: dict[str, list[list[list[int]]]] = {
    "each once": [[[0], [3], [7]], [[1], [3]], [[0], [10], [4], [5]], [[2]], [[7], [3]]],
    "some twice": [[[3], [3], [7]], [[1], [1], [1]], [[0], [10], [0]], [[2], [2]], [[7], [3], [7], [3]]],
    "bags": [[[0, 3], [7]], [[1, 3, 3]], [[], [10, 4]], [[2], [], [2, 5]], [[7, 3, 0, 1]]],
    "no bag at all": [[[]], [[], []], [[1]], [[]], [[1], []]],
}
POOLING = {"sum": PoolingMode.SUM, "mean": PoolingMode.MEAN, "none": PoolingMode.NONE}
#: The peer's optimizer, ours, and whether it has states of its own.
OPTIMIZERS: dict[str, tuple[EmbOptimType, Any, bool]] = {
    "SGD": (EmbOptimType.EXACT_SGD, mg.optim.SGD, False),
    "Adagrad": (EmbOptimType.EXACT_ADAGRAD, mg.optim.Adagrad, True),
    "Adagrad by row": (EmbOptimType.EXACT_ROWWISE_ADAGRAD, partial(mg.optim.Adagrad, state="row"), True),
}


def _drawn(bags: list[list[int]], pooling: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, offsets (one more than bags), and the gradient of what is looked up."""
    ids = torch.tensor([id for bag in bags for id in bag], dtype=torch.long)
    offsets = torch.tensor([0, *itertools.accumulate(map(len, bags))])
    rows = len(ids) if pooling == "none" else len(bags)
    return ids, offsets, torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def _start() -> Tensor:
    return torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)


def theirs(kind: EmbOptimType, states: bool, steps: Any, pooling: str, lr: float, eps: float) -> Any:
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=kind,
        learning_rate=lr,
        eps=eps,
        pooling_mode=POOLING[pooling],
        stochastic_rounding=False,
        device="cpu",
    )
    (weights,) = table.split_embedding_weights()
    weights.copy_(_start())
    found = []
    for seed, bags in enumerate(steps):
        ids, offsets, grad = _drawn(bags, pooling, seed)
        result = table(ids, offsets)
        result.backward(grad)
        found.append(result.detach().clone())
    state = [table.split_optimizer_states()[0][0].reshape(ROWS, -1)] if states else []
    return [weights, *state, *found]


def ours(kind: Any, states: bool, steps: Any, pooling: str, lr: float, eps: float) -> Any:
    weight = nn.Parameter(_start())
    optimizer = kind([weight], lr=lr, **({"eps": eps} if states else {}))
    found = []
    for seed, bags in enumerate(steps):
        ids, offsets, grad = _drawn(bags, pooling, seed)
        if pooling == "none":
            result = nn.functional.embedding(ids, weight, sparse=True)
        else:
            result = nn.functional.embedding_bag(
                ids, weight, offsets, mode=pooling, sparse=True, include_last_offset=True
            )
        optimizer.zero_grad()
        result.backward(grad)
        optimizer.step()
        found.append(result.detach().clone())
    state = [optimizer.state[weight]["sum"].reshape(ROWS, -1)] if states else []
    return [weight, *state, *found]


def cases() -> Iterator[Case]:
    """Each optimizer, with each pooling, choice of rows, rate and epsilon."""
    for (name, (their, our, states)), (label, steps), pooling in itertools.product(
        OPTIMIZERS.items(), BAGS.items(), POOLING
    ):
        for lr, eps in itertools.product((0.01, 0.1, 1.0), (1e-8, 1e-3) if states else (math.nan,)):
            options = (states, steps, pooling, lr, eps)
            more = f", eps {eps}" if states else ""
            yield Case(
                f"{name}, {label}, {pooling}, lr {lr}{more}",
                partial(theirs, their, *options),
                partial(ours, our, *options),
            )


SUITE = Suite("fbgemm", importlib.metadata.version("fbgemm-gpu-cpu"), cases)
