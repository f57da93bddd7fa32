"""Runs two training steps with the features of a program, and compares each number with the oracle's."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

import maskgrad as mg
from tests.pairs.features import LAYOUTS, MODULES, OPTIONS, ROWS, STEPS, WIDTH, Module, Net
from tests.pairs.oracle import BETAS, DECAY, EPS, LR, Adam, Expected, expected

__all__ = ["Program", "check"]

COMPILED, ACCUMULATED, PER_SAMPLE, CHECKPOINTED, AUTOCAST = (
    "`torch.compile`", "`GradientAccumulator`", "`per_sample_grad`", "`checkpoint`", "`autocast`",
)  # fmt: skip


class Program(NamedTuple):
    """A choice of features, by their names in the table."""

    module: str
    layout: str
    option: str
    ways: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        return (self.module, self.layout, self.option, *self.ways)


def check(program: Program) -> None:
    """Train for two steps; AssertionError where a number, a mask, a gradient or a parameter is another one."""
    module, ways = MODULES[program.module], set(program.ways)
    dtype = torch.float32 if AUTOCAST in ways else torch.float64
    torch.manual_seed(0)
    net = Net(module, module.make(dtype=dtype), CHECKPOINTED in ways)
    with torch.no_grad():  # Adam makes much of the rounding of a gradient that is zero; decay is added to it
        for p in net.parameters():
            p.normal_(std=0.5)
    plain = module.plain(dtype=dtype)
    plain.load_state_dict(net.layer.state_dict())
    parameters: dict[str, Tensor] = dict(plain.named_parameters())
    settings: Any = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
    optimizer = mg.optim.Adam(net.parameters(), **settings, **OPTIONS[program.option])
    rule = Adam("state" in OPTIONS[program.option])
    run: Any = net
    if COMPILED in ways:
        torch._dynamo.reset()
        run = torch.compile(net, backend="aot_eager", fullgraph=module.one_graph)
    for step in range(2):
        lengths = [STEPS] * 4 if program.layout == "plain" else [[3, 0, 2, 1], [1, 2, 0, 3]][step]
        data = _data(module, step, lengths, dtype)
        target = torch.randn(4, *(() if module.pools else (STEPS,)), WIDTH, dtype=dtype)
        with _casts(ways):
            wanted = expected(module, plain, data, lengths, target)
        optimizer.flush()  # tables that are not of mg.nn need it where they lag
        _backward(program, net, run, data, torch.tensor(lengths), target, wanted)
        touched = _touched(module, program, data, lengths)
        total = (
            {name: torch.stack([g[name] for g in wanted.of_samples]).mean(0) for name in wanted.gradient}
            if PER_SAMPLE in ways and ACCUMULATED not in ways
            else wanted.gradient
        )
        for name, p in net.layer.named_parameters():
            found = p.grad.to_dense()
            _close(found, total[name], ways, f"gradient of {name}")
            total[name] = found if AUTOCAST in ways else total[name]
        rule.step(parameters, total, touched)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    for name, p in net.layer.named_parameters():
        torch.testing.assert_close(
            p, parameters[name], msg=lambda m, name=name: f"{name} after two steps: {m}"
        )


def _data(module: Module, step: int, lengths: list[int], dtype: torch.dtype) -> Tensor:
    torch.manual_seed(10 + step)
    padding = torch.arange(STEPS) >= torch.tensor(lengths)[:, None]
    if module.ids:  # three of the rows are never looked up in the second step
        return torch.randint(ROWS - 3 * step, (4, STEPS)).masked_fill(padding, 10**9)
    return torch.randn(4, STEPS, WIDTH, dtype=dtype).masked_fill(padding[..., None], float("nan"))


def _touched(module: Module, program: Program, data: Tensor, lengths: list[int]) -> Tensor | None:
    """The rows that the gradient lists; None: it is dense, or a missing row counts as zero."""
    if not module.lists_rows or "zero" in program.option:
        return None
    named = torch.cat([ids[:n] for ids, n in zip(data, lengths, strict=True)])
    return torch.zeros(ROWS, dtype=torch.bool).index_fill(0, named, True)


def _backward(
    program: Program, net: Net, run: Any, data: Tensor, lengths: Tensor, target: Tensor, wanted: Expected
) -> None:
    ways, make = set(program.ways), LAYOUTS[program.layout]

    def losses(y: Any, t: Tensor) -> Any:
        return (y - t).square()

    if PER_SAMPLE in ways:
        found = _of_samples(ways, run, make(data, lengths), target, wanted)
        if ACCUMULATED not in ways:
            for name, p in net.layer.named_parameters():
                p.grad = _mean(found[name])
            return
    if ACCUMULATED not in ways:
        with _casts(ways):
            y = run(make(data, lengths))
            _compare(y, wanted, ways)
            loss = losses(y, target).mean()
        loss.backward()
        return
    accumulator = mg.GradientAccumulator(net)
    for part in (slice(0, 1), slice(1, 4)):
        with _casts(ways):
            y = run(make(data[part], lengths[part]))
            _compare(y, Expected(wanted.outputs[part], [], {}), ways)
            each = losses(y, target[part])
        accumulator.backward(each if isinstance(each, mg.MaskedTensor) else mg.masked(each))
        if PER_SAMPLE in ways:  # between two backward passes: neither disturbs the other
            _of_samples(ways, run, make(data, lengths), target, wanted)
    accumulator.finish()


def _of_samples(ways: set[str], run: Any, x: Any, target: Tensor, wanted: Expected) -> dict[str, Tensor]:
    with _casts(ways):
        found = mg.per_sample_grad(run, lambda y, t: (y - t).square().mean(), x, target)
    found = {name.removeprefix("_orig_mod.").removeprefix("layer."): g for name, g in found.items()}
    for name, g in found.items():
        for b, own in enumerate(wanted.of_samples):
            _close(g.to_dense()[b], own[name], ways, f"gradient of sample {b} by {name}")
    return found


def _mean(of_samples: Tensor) -> Tensor:
    if not of_samples.is_sparse:
        return of_samples.mean(0)
    return torch.sparse.sum(of_samples, 0) / len(of_samples)


def _compare(y: Any, wanted: Expected, ways: set[str]) -> None:
    """Masks first: what is specified, and then the numbers."""
    given = y if isinstance(y, mg.MaskedTensor) else mg.masked(y)
    mask, values = given.mask, given.to_dense().filled(0.0)
    for b, own in enumerate(wanted.outputs):
        if own is None:
            assert not mask[b].any(), f"sample {b} has no entry, but {mask[b]}"
        else:
            place = ... if own.dim() == mask.dim() - 1 and len(own) == len(mask[b]) else slice(len(own))
            assert mask[b][place].all(), f"entries of sample {b} are missing"
            assert own.numel() == int(mask[b].sum()), f"too many entries of sample {b}"
            _close(values[b][place], own, ways, f"sample {b}")


def _casts(ways: set[str]) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if AUTOCAST in ways else contextlib.nullcontext()


def _close(found: Tensor, wanted: Tensor, ways: set[str], what: str) -> None:
    # bfloat16 has 8 bits, and sums of rounded numbers differ in their order
    tolerance = {"rtol": 0.05, "atol": 0.05} if AUTOCAST in ways else {"rtol": 1e-9, "atol": 1e-12}
    found, wanted = found.to(torch.float64), wanted.to(torch.float64)
    torch.testing.assert_close(found, wanted, **tolerance, msg=lambda m: f"{what}: {m}")
