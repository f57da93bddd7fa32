"""``maskgrad warmup``: compile the kernels ahead of time, so that no first call waits for the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

__all__ = ["warmup"]

DTYPES = ("float32", "float64", "bfloat16", "float16")


def warmup(
    dtypes: Annotated[str, typer.Option(help=f"Comma-separated dtypes: {', '.join(DTYPES)}.")] = "float32",
) -> None:
    """Compile the kernels for this machine and cache them on disk: a minute or two, once per version."""
    names = [name.strip() for name in dtypes.split(",") if name.strip()]
    unknown = [name for name in names if name not in DTYPES]
    if unknown or not names:
        raise typer.BadParameter(
            f"expected a comma-separated list of {', '.join(DTYPES)}, got {dtypes!r}",
            param_hint="'--dtypes'",
        )
    # torch and numba take seconds to load; `--help` does not need them.
    import torch
    from numba.core import event

    import maskgrad as mg

    start = time.perf_counter()
    with event.install_recorder("numba:compile") as compiled, mg.use_kernels("cpu"):
        for name in names:
            for about, work in programs(getattr(torch, name)):
                typer.echo(f"{name:9} {about} ...")
                work()
    made = sum(1 for _, found in compiled.buffer if found.is_start)
    typer.echo(
        f"{made} loops were compiled in {time.perf_counter() - start:.0f} s; the others were cached already."
    )


def programs(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Small programs that together call all compiled kernels, forward and backward, with their names."""
    import torch
    import torch.nn.functional as F

    import maskgrad as mg

    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(7, 11, generator=generator) < 0.6
    mask[0], mask[:, 0] = True, True
    labels = torch.randint(11, (7,), generator=generator)

    def operand(layout: torch.layout = torch.strided) -> Any:
        data = torch.rand(7, 11, generator=generator).add(0.5).to(dtype).requires_grad_()
        x = mg.masked(data, mask)
        return x if layout == torch.strided else x.to_sparse(layout=layout)

    def both(*functions: Callable[[Any], Any], layout: torch.layout = torch.strided) -> Callable[[], None]:
        def work() -> None:
            for function in functions:
                found = function(operand(layout))
                (found.filled(0.0) if isinstance(found, mg.MaskedTensor) else found).sum().backward()

        return work

    def along(*names: str, dims: tuple[Any, ...] = (0, 1, (0, 1))) -> list[Callable[[Any], Any]]:
        return [methodcaller(name, dim) for name in names for dim in dims]

    def norms(*dims: Any) -> list[Callable[[Any], Any]]:
        return [partial(torch.linalg.vector_norm, ord=order, dim=dim) for order in (1, 2) for dim in dims]

    def loss(function: Callable[..., Any], reduction: str, x: Any) -> Any:
        return function(x, x.detach() + 1, reduction=reduction)

    how = ("mean", "sum", "none")
    losses = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
    yield "sums and means", both(*along("sum", "mean"))
    yield "variances", both(*along("var", "std"))
    yield "extrema", both(*along("amax", "amin"))
    yield "compaction of entries", both(methodcaller("compressed"))
    yield "positions", lambda: [operand().detach().argmax(dim) for dim in (0, 1)]
    yield "extrema without a gradient", lambda: [operand().detach().amax(dim) for dim in (0, 1)]
    yield "products", both(*along("prod", dims=(0, 1)))
    yield "norms", both(*norms(0, 1, (0, 1)))
    yield "softmax", both(*along("softmax", "log_softmax", "logsumexp", dims=(0, 1)))
    yield "running sums", both(*along("cumsum", dims=(0, 1)))
    ones = torch.ones(11, dtype=dtype)
    yield (
        "layer normalisation",
        both(*(partial(_layer_norm, *found) for found in ((None, None), (ones, ones)))),
    )
    yield "batch normalisation", both(lambda x: F.batch_norm(x, None, None, training=True))
    yield "losses", both(*(partial(loss, function, each) for function in losses for each in how))
    yield "cross-entropy", both(*(partial(F.cross_entropy, target=labels, reduction=each) for each in how))
    along_rows = along("sum", "mean", "var", "amax", "softmax", "logsumexp", "prod", dims=(1,))
    for layout in (torch.sparse_coo, torch.sparse_csr):
        yield f"layout {layout}", both(*along_rows, *norms(1), layout=layout)
    yield "attention of sequences", partial(_attention, dtype)
    yield "rows of tables", partial(_tables, dtype)


def _layer_norm(weight: torch.Tensor | None, bias: torch.Tensor | None, x: Any) -> Any:
    import torch.nn.functional as F

    return F.layer_norm(x, (11,), weight, bias)


def _attention(dtype: torch.dtype) -> None:
    import torch
    import torch.nn.functional as F

    import maskgrad as mg

    for causal in (False, True):
        rows = [torch.rand(n, 2, 8).to(dtype).requires_grad_() for n in (3, 5)]
        x: Any = mg.from_sequences(rows).transpose(1, 2)
        F.scaled_dot_product_attention(x, x, x, is_causal=causal).sum().backward()


def _tables(dtype: torch.dtype) -> None:
    """Look-ups, duplicates merged, and the fused steps on rows."""
    import torch

    import maskgrad as mg

    places = torch.tensor([[0, 2, 2], [1, 0, 0]])
    mg.sparse.coalesce(
        torch.sparse_coo_tensor(places, torch.ones(3, dtype=dtype), (3, 3), check_invariants=True)
    )
    optim = mg.optim
    makers: list[Callable[..., torch.optim.Optimizer]] = [
        optim.SGD, partial(optim.SGD, momentum=0.9), optim.Adagrad, optim.Adam, optim.AdamW, optim.RMSprop
    ]  # fmt: skip
    for make in makers:
        table = mg.nn.Embedding(50, 8, sparse=True).to(dtype)
        optimizer = make(table.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([[1, 2, 2], [3, 1, 0]])).square().sum().backward()
            optimizer.step()
