"""``maskgrad warmup``: compile the kernels ahead of time, so that no first call waits for the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from operator import methodcaller
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.progress import track

import maskgrad as mg

__all__ = ["warmup"]

Dtype = Enum("Dtype", {n: n for n in ("float32", "float64", "bfloat16", "float16")})  # type: ignore[misc]


def warmup(
    dtype: Annotated[list[Dtype] | None, typer.Option(help="May be repeated; float32 by default.")] = None,
) -> None:
    """Compile the kernels for this machine and cache them on disk: a minute or two, once per version."""
    from numba.core import event  # numba takes seconds to load; `--help` does not need it

    start = time.perf_counter()
    with event.install_recorder("numba:compile") as compiled, mg.use_kernels("cpu"):
        for name in [chosen.value for chosen in dtype or ()] or ["float32"]:
            for work in track([*programs(getattr(torch, name))], f"compiling for {name}"):
                work()
    made, seconds = sum(found.is_start for _, found in compiled.buffer), time.perf_counter() - start
    typer.echo(f"{made} loops were compiled in {seconds:.0f} s; the others were cached already.")


def programs(dtype: torch.dtype) -> Iterator[Callable[[], object]]:
    """Small programs that together call all compiled kernels, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(7, 11, generator=generator) < 0.6
    mask[0], mask[:, 0] = True, True
    data, labels = torch.rand(7, 11, generator=generator).add(0.5).to(dtype), torch.arange(7)

    def differentiated(function: Callable[[Any], Any], layout: torch.layout = torch.strided) -> None:
        x = mg.masked(data.clone().requires_grad_(), mask)
        found = function(x if layout == torch.strided else x.to_sparse(layout=layout))
        (found.filled(0.0) if isinstance(found, mg.MaskedTensor) else found).sum().backward()

    for layout in (torch.strided, torch.sparse_coo, torch.sparse_csr):
        for name in ("sum", "mean", "var", "amax", "softmax", "logsumexp"):
            dims: tuple[Any, ...] = (0, 1, (0, 1))[: 2 if name == "softmax" else 3]
            for dim in dims if layout == torch.strided else (1,):
                yield partial(differentiated, methodcaller(name, dim), layout)
    x = mg.masked(data, mask)
    yield lambda: [(x.amax(dim), x.argmax(dim)) for dim in (0, 1)]
    for reduction in ("mean", "sum", "none"):
        for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss):
            yield partial(differentiated, partial(loss, target=data + 1, reduction=reduction))
        yield partial(differentiated, partial(F.cross_entropy, target=labels, reduction=reduction))
    rows: Any = mg.from_sequences([torch.rand(n, 2, 8, generator=generator).to(dtype) for n in (3, 5)])

    def attention(causal: bool) -> None:
        x = rows.transpose(1, 2).detach().requires_grad_()
        F.scaled_dot_product_attention(x, x, x, is_causal=causal).sum().backward()

    for causal in (False, True):
        yield partial(attention, causal)
    for name in ("SGD", "Adagrad", "Adam", "AdamW", "RMSprop"):
        yield partial(_table, dtype, getattr(mg.optim, name), {})
    yield partial(_table, dtype, mg.optim.SGD, {"momentum": 0.9})


def _table(
    dtype: torch.dtype, optimizer: Callable[..., torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    """A look-up in which a row occurs twice, duplicates merged, and the fused step on rows."""
    table = mg.nn.Embedding(50, 8, sparse=True).to(dtype)
    stepping = optimizer(table.parameters(), lr=0.1, **options)
    for _ in range(2):
        stepping.zero_grad()
        table(torch.tensor([[1, 2, 2], [3, 1, 0]])).square().sum().backward()
        mg.sparse.coalesce(table.weight.grad)  # type: ignore[arg-type]
        stepping.step()
