"""Whole trainings with `prepare`, step by step against one process on the joint batch."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import (
    SCENARIOS,
    WORDS,
    OnlyTables,
    OwnAndDense,
    Tables,
    batches,
    check,
    course,
    loss_of,
    made,
    never_seldom,
    state,
    trained,
)


def _training(rank: int, world_size: int, name: str, optimizer: str) -> list[Tensor]:
    kind, flags, options = SCENARIOS[name]
    module = made(kind)
    if rank:
        for p in module.parameters():
            p.data.zero_()  # rank 0's are sent
    model = mg.distributed.prepare(module, **options)
    return course(module, model, [rank], optimizer, flags)


@pytest.mark.parametrize(
    ("name", "world_size"),
    [*((name, 2) for name in SCENARIOS), *((name, 4) for name in ("tied", "masked"))],
)
def test_as_one_process_on_the_joint_batch(name: str, world_size: int) -> None:
    kind, flags, _ = SCENARIOS[name]
    optimizer = "Adagrad" if name in ("tables", "tied") else "SGD"
    module = made(kind)
    expected = course(module, module, list(range(world_size)), optimizer, flags)
    check(run_on_ranks(_training, world_size, name, optimizer), expected)


def _accumulating(rank: int, world_size: int) -> list[Tensor]:
    module = made(Tables)
    model = mg.distributed.prepare(module, find_unused_parameters=True)

    def loss(step: int) -> Tensor:
        with model.no_sync():
            # what only the first half uses must be exchanged with the second
            (loss_of(model(batches(step, rank), seldom=rank == 0)) / 2).backward()
        return loss_of(model(batches(step + 10, rank))) / 2

    return trained(module, [mg.optim.SGD(module.parameters(), lr=0.1)], loss, 3)


def test_gradients_accumulated_without_exchange() -> None:
    module = made(Tables)

    def loss(step: int) -> Tensor:
        parts = [loss_of(module(batches(step, rank), seldom=rank == 0)) for rank in (0, 1)]
        parts += [loss_of(module(batches(step + 10, rank))) for rank in (0, 1)]
        return torch.stack(parts).mean()

    expected = trained(module, [mg.optim.SGD(module.parameters(), lr=0.1)], loss, 3)
    check(run_on_ranks(_accumulating, 2), expected)


def _uneven(rank: int, world_size: int, kind: Callable[[], nn.Module]) -> list[Tensor]:
    module = made(kind)
    model = mg.distributed.prepare(module)

    def loss(step: int) -> Tensor:
        words = batches(step, rank)  # from a step on a rank has no more samples
        return loss_of(model(words)) if step < 2 + 2 * rank else model(words[:0]).sum()

    return trained(module, [mg.optim.SGD(module.parameters(), lr=0.1)], loss, 2 * world_size)


@pytest.mark.parametrize("kind", [OwnAndDense, OnlyTables])
def test_a_rank_without_more_samples_passes_an_empty_batch(kind: Callable[[], nn.Module]) -> None:
    module = made(kind)

    def loss(step: int) -> Tensor:
        losses = [loss_of(module(batches(step, rank))) for rank in (0, 1) if step < 2 + 2 * rank]
        return torch.stack(losses).sum() / 2

    expected = trained(module, [mg.optim.SGD(module.parameters(), lr=0.1)], loss, 4)
    check(run_on_ranks(_uneven, 2, kind), expected)


def _compiled(rank: int, world_size: int, outside: bool) -> list[Tensor]:
    module = made(Tables)
    if outside:
        model = torch.compile(mg.distributed.prepare(module), backend="aot_eager")
    else:
        model = mg.distributed.prepare(torch.compile(module, backend="aot_eager"))  # type: ignore[arg-type]
    return course(module, model, [rank], "SGD", never_seldom, steps=2)


@pytest.mark.parametrize("outside", [False, True])
def test_compiled(outside: bool) -> None:
    module = made(Tables)
    check(run_on_ranks(_compiled, 2, outside), course(module, module, [0, 1], "SGD", never_seldom, steps=2))


def _scaled(rank: int, world_size: int) -> tuple[list[float], Tensor, bool]:
    module = made(Tables)
    model = mg.distributed.prepare(module)
    optimizer = mg.optim.SGD(module.parameters(), lr=0.1)
    scaler = mg.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    scales, before = [], state(module)
    skipped = False
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model(batches(step, rank), seldom=True))
        if step == 1 and rank == 1:
            loss = loss * float("inf")  # on one rank only
        scaler.scale(loss).backward()
        before = state(module)
        scaler.unscale_(optimizer)
        mg.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        skipped |= step == 1 and torch.equal(before, state(module))
        scales.append(scaler.get_scale())
    return scales, state(module), skipped


def test_all_ranks_skip_the_same_steps() -> None:
    first, second = run_on_ranks(_scaled, 2)
    assert first[0] == second[0] == [8.0, 4.0, 4.0, 8.0]
    assert torch.equal(first[1], second[1])
    assert first[1].isfinite().all()
    assert first[2]
    assert second[2]


def _attached(rank: int, world_size: int) -> list[Any]:
    module = made(OwnAndDense)
    rows = module.own.rows

    def only_some(p: Tensor) -> None:
        trained = torch.arange(WORDS).unsqueeze(1) % 2 == rank
        gradient = p.grad
        assert gradient is not None
        p.grad = None
        mg.attach_gradient(p, mg.masked(gradient.to_dense(), trained.expand(p.shape)))

    rows.register_post_accumulate_grad_hook(only_some)
    model = mg.distributed.prepare(module)
    loss_of(model(batches(0, rank))).backward()
    attached = mg.optim.attached_gradient(rows)
    assert isinstance(attached, mg.MaskedTensor)
    return [attached.mask.all().item(), attached.filled(0)]


def test_gradients_that_a_hook_has_masked() -> None:
    gradients = []
    for rank in (0, 1):
        module = made(OwnAndDense)
        loss_of(module(batches(0, rank))).backward()
        trained = torch.arange(WORDS).unsqueeze(1) % 2 == rank
        gradients.append(torch.where(trained, module.own.rows.grad.to_dense(), 0))
    for complete, found in run_on_ranks(_attached, 2):
        assert complete
        torch.testing.assert_close(found, (gradients[0] + gradients[1]) / 2)


def _state_dicts(rank: int, world_size: int) -> None:
    module = made(Tables)
    model = mg.distributed.prepare(module)
    names = [f"module.{name}" for name in module.state_dict()]
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_parameters()] == names
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file, weights_only=True))
    assert model.eval().module.training is False
    with torch.no_grad():
        assert torch.equal(model(batches(0, 0)), module(batches(0, 0)))
    # only ours, without gradients, and twice backward through one forward
    model.train()
    loss = loss_of(model(batches(0, rank), seldom=True))
    loss.backward(retain_graph=True)
    once = module.table.weight.grad.to_dense()
    loss.backward()
    torch.testing.assert_close(module.table.weight.grad.to_dense(), once * 2)


def _bystanders(rank: int, world_size: int) -> None:
    module = nn.ModuleDict({"shared": nn.Linear(2, 2), "local": nn.Embedding(7, 2)})
    module["local"]._ddp_params_and_buffers_to_ignore = ["weight"]
    module.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(words: Tensor) -> Tensor:
        return module["shared"](module["local"](words)).sum()

    module.forward = forward
    model = mg.distributed.prepare(module)
    model(torch.tensor([1, 2])).backward()
    assert module["shared"].weight.grad is not None


@pytest.mark.parametrize("program", [_state_dicts, _bystanders])
def test_on_two_ranks(program: Any) -> None:
    run_on_ranks(program, 2)
