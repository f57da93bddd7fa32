"""Whole trainings with `prepare`, step by step against one process on the joint batch; and refused gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.trainings import (
    OwnLookup,
    Sometimes,
    Tables,
    Tied,
    batches,
    check,
    loss_of,
    made,
    trained,
)


def usual(model: Any, step: int, rank: int) -> Tensor:
    return loss_of(model(batches(step, rank)))


def seldom_on_rank_1(model: Any, step: int, rank: int) -> Tensor:
    return loss_of(model(batches(step, rank), seldom=rank == 1 and step % 2 == 0))


def multiply_on_rank_0(model: Any, step: int, rank: int) -> Tensor:
    return loss_of(model(batches(step, rank), multiply=rank == 0 and step > 0))


def until_step_2_on_rank_0(model: Any, step: int, rank: int) -> Tensor:
    """A rank without more samples passes an empty batch."""
    words = batches(step, rank)
    return loss_of(model(words)) if step < 2 + 2 * rank else model(words[:0]).sum()


def in_two_halves(model: Any, step: int, rank: int) -> Tensor:
    """What only the first half uses must be exchanged with the second."""

    def half(step: int, seldom: bool) -> Tensor:
        return loss_of(model(batches(step, rank), seldom)) / 2

    if isinstance(model, Tables):
        return half(step, rank == 0) + half(step + 10, False)
    with model.no_sync():
        half(step, rank == 0).backward()
    return half(step + 10, False)


Loss = Callable[[Any, int, int], Tensor]
SCENARIOS: dict[str, tuple[Callable[[], nn.Module], Loss, dict[str, Any]]] = {
    "tables": (Tables, usual, {"gradient_as_bucket_view": True}),
    "unused on a rank": (Tables, seldom_on_rank_1, {"find_unused_parameters": True}),
    "in two halves": (Tables, in_two_halves, {"find_unused_parameters": True}),
    "tied": (Tied, multiply_on_rank_0, {}),
    "only on a rank": (Sometimes, seldom_on_rank_1, {}),
    "named": (Tables, usual, {"sparse": ["hidden", "extra.weight"]}),
    "uneven": (Tables, until_step_2_on_rank_0, {}),
    "unknown class": (OwnLookup, until_step_2_on_rank_0, {}),
    "compiled inside": (Tables, usual, {}),
    "compiled outside": (Tables, usual, {}),
}


def course(name: str, module: nn.Module, model: Any, ranks: list[int]) -> list[Tensor]:
    """A training on the batches of ``ranks`` together."""
    kind = mg.optim.Adagrad if name in ("tables", "tied") else mg.optim.SGD

    def loss(step: int) -> Tensor:
        return torch.stack([SCENARIOS[name][1](model, step, rank) for rank in ranks]).mean()

    return trained(module, [kind(module.parameters(), lr=0.1)], loss, 4)


def _training(rank: int, world_size: int, name: str) -> list[Tensor]:
    kind, _, options = SCENARIOS[name]
    module = made(kind)
    if rank:
        for p in module.parameters():
            p.data.zero_()  # rank 0's are sent
    inner: Any = torch.compile(module, backend="aot_eager") if name == "compiled inside" else module
    model: Any = mg.distributed.prepare(inner, **options)
    if name == "compiled outside":
        model = torch.compile(model, backend="aot_eager")
    return course(name, module, model, [rank])


@pytest.mark.parametrize(("name", "world_size"), [*((name, 2) for name in SCENARIOS), ("tied", 4)])
def test_as_one_process_on_the_joint_batch(name: str, world_size: int) -> None:
    module = made(SCENARIOS[name][0])
    expected = course(name, module, module, list(range(world_size)))
    check(run_on_ranks(_training, world_size, name), expected)


def _used_as_a_module(rank: int, world_size: int) -> None:
    """Names of its state, evaluation, two backward passes through one forward pass, and parameters left alone."""
    module = made(Tables)
    module.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    module.local = nn.Embedding(2, 2)
    module.local._ddp_params_and_buffers_to_ignore = ["weight"]
    model = mg.distributed.prepare(module)
    names = [f"module.{name}" for name in module.state_dict()]
    assert list(model.state_dict()) == names
    assert [name for name, _ in model.named_parameters()] == names
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    assert model.eval().module.training is False
    with torch.no_grad():
        assert torch.equal(model(batches(0, 0)), module(batches(0, 0)))
    loss = loss_of(model.train()(batches(0, rank)))
    loss.backward(retain_graph=True)
    once = module.table.weight.grad.to_dense()
    loss.backward()
    torch.testing.assert_close(module.table.weight.grad.to_dense(), once * 2)


def test_a_prepared_module_is_used_as_any_other() -> None:
    run_on_ranks(_used_as_a_module, 2)


def _broken_gradient(rank: int, world_size: int) -> tuple[str, str]:
    module = made(Tables)
    broken = [rank == 1]

    def spoil(p: Tensor) -> None:
        if broken[0]:
            p.grad = torch.sparse_coo_tensor([[99]], torch.ones(1, 4), p.shape, check_invariants=False)

    module.seldom.weight.register_post_accumulate_grad_hook(spoil)
    alone = copy.deepcopy(module)
    loss_of(alone(batches(0, rank))).backward()
    model = mg.distributed.prepare(module)
    try:
        loss_of(model(batches(0, rank))).backward()
    except IndexError as error:
        text = str(error)
    # what had been sent before is not written either
    assert torch.equal(module.table.weight.grad.to_dense(), alone.table.weight.grad.to_dense())
    broken[0] = False
    for p in module.parameters():
        p.grad = None
    loss_of(model(batches(0, rank))).backward()  # all goes on
    return text, str(module.seldom.weight.grad.layout)


def test_a_broken_gradient_is_refused_on_all_ranks_and_training_goes_on() -> None:
    for text, layout in run_on_ranks(_broken_gradient, 2):
        assert "gradient of parameter 'seldom.weight'" in text
        assert "99" in text
        assert layout == "torch.sparse_coo"


class Undeclared(OwnLookup):
    """A layer that pretends to be one of torch.nn."""


Undeclared.__module__ = "torch.nn.modules.linear"


def _undeclared(rank: int, world_size: int) -> str:
    with pytest.raises(RuntimeError) as refusal:
        loss_of(mg.distributed.prepare(made(Undeclared))(batches(0, rank))).backward()
    module = made(Undeclared)
    loss_of(mg.distributed.prepare(module, sparse=["rows"])(batches(0, rank))).backward()
    assert module.rows.grad.is_sparse
    return str(refusal.value)


def test_an_undeclared_sparse_gradient_is_refused_by_name() -> None:
    for text in run_on_ranks(_undeclared, 2):
        assert "'rows'" in text
        assert "sparse=['rows']" in text
