"""What is said where ranks cannot be tried, or where no line divides wrongly."""

from __future__ import annotations

import linecache
import os
import random
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import maskgrad as mg
from maskgrad.errors import ExaminationError
from maskgrad.simulated_ranks import experiment
from maskgrad.simulated_ranks import ranks as simulation


@pytest.fixture(autouse=True)
def _seed():
    torch.default_generator.manual_seed(0)


MASK = torch.arange(5) < torch.tensor([5, 3, 2, 5, 1, 4, 2, 3])[:, None]


def batch(**more):
    return {"x": torch.randn(8, 5, 4), "y": torch.randn(8, 5), "mask": MASK, **more}


def examined(step, batch, ranks=4):
    return mg.doctor.examine(step, batch, ranks=ranks, experiments=["ranks"])


def mse(model, batch):
    return (model(batch["x"]).squeeze(-1) - batch["y"]).square() * batch["mask"]


def token_mean(model):
    return lambda batch: mse(model, batch).sum() / batch["mask"].sum()


def sequence_mean(model):
    return lambda batch: (mse(model, batch).sum(1) / batch["mask"].sum(1)).mean()


def test_nothing_changes() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 1))
    optimizer, scale = torch.optim.Adam(model.parameters()), nn.Parameter(torch.ones(()))
    scale.grad = torch.full((), 3.0)
    model.calls = 0

    def step(batch):
        model.calls += 1
        optimizer.zero_grad()
        loss = (scale * mse(model, batch)).sum() / batch["mask"].sum()
        loss.backward()
        optimizer.step()
        random.random()
        np.random.rand()  # noqa: NPY002

    data, before = batch(), {name: held.clone() for name, held in model.state_dict().items()}
    state = torch.get_rng_state(), random.getstate(), dict(os.environ), c10d._world, dist.all_reduce
    assert examined(step, data).kinds() == ["denominator"]
    now = torch.get_rng_state(), random.getstate(), dict(os.environ), c10d._world, dist.all_reduce
    assert torch.equal(state[0], now[0])
    assert state[1:] == now[1:]
    assert all(torch.equal(before[name], held) for name, held in model.state_dict().items())
    assert all(param.grad is None and param.dtype is torch.float32 for param in model.parameters())
    assert not optimizer.state
    assert scale.grad == 3.0
    assert not dist.is_initialized()
    assert torch.get_default_dtype() is torch.float32


def test_other_batches_are_incomplete() -> None:
    model = nn.Linear(4, 1)
    few = {name: held[:3] for name, held in batch().items()}
    assert (
        "3 samples along the first dimension are too few" in examined(sequence_mean(model), few).unexamined[0]
    )
    same = batch(mask=torch.ones(8, 5, dtype=torch.bool))
    report = examined(token_mean(model), same)
    assert report.verdict == "incomplete"
    assert "samples of different lengths" in report.unexamined[0]


def test_samples_that_are_left_over_are_counted() -> None:
    ten = batch(x=torch.randn(10, 5, 4), y=torch.randn(10, 5), mask=torch.cat([MASK, MASK[:2]]))
    model = nn.Linear(4, 1)
    report = examined(sequence_mean(model), ten)
    assert report.ok
    assert report.experiments[0].changed == "on 4 ranks, 8 of 10 samples in order"
    assert examined(token_mean(model), ten).kinds() == ["denominator"]


def test_other_samples_meet_where_ranks_have_as_many_entries() -> None:
    mask = torch.arange(5) < torch.tensor([5, 1, 5, 1, 1, 5, 1, 5])[:, None]
    report = examined(token_mean(nn.Linear(4, 1)), batch(mask=mask))
    assert report.kinds() == ["denominator"]
    assert "longest first" in report.findings[0].message


def test_numbers_that_the_step_draws_are_noted() -> None:
    model = nn.Linear(4, 1)

    def step(batch):
        return sequence_mean(model)({**batch, "x": batch["x"] + torch.randn_like(batch["x"])})

    report = examined(step, batch())
    assert report.verdict == "incomplete"
    assert "draws its own random numbers" in str(report.notes[0])
    assert report.notes[0].line


def test_ranks_have_their_own_seeds_and_dropout_is_left_out() -> None:
    model, seen = nn.Sequential(nn.Linear(4, 1), nn.Dropout()), []

    def step(batch):
        if dist.get_world_size() > 1:
            seen.append(int(torch.randint(1 << 30, ())))
        return sequence_mean(model)(batch)

    assert examined(step, batch()).ok
    assert len(set(seen)) == 4


def test_a_program_that_fails_or_never_ends_is_incomplete(monkeypatch) -> None:
    model = nn.Linear(4, 1)

    def fails(batch):
        assert dist.get_rank() < 2, "only two"
        return sequence_mean(model)(batch)

    assert "rank 2 of 4 fails: AssertionError: only two" in examined(fails, batch()).unexamined[0]

    def never_ends(batch):
        while dist.get_rank() == 1:
            pass
        sequence_mean(model)(batch).backward()

    def sleeps(batch):
        time.sleep(2.0 * (dist.get_rank() == 1))
        sequence_mean(model)(batch).backward()

    monkeypatch.setattr(simulation, "LIMIT_S", 1)
    for step in (never_ends, sleeps):
        assert "rank 1 has not ended after 1 s" in examined(step, batch()).unexamined[0]
    time.sleep(2.0)  # until the late ranks go on
    assert all(param.grad is None for param in model.parameters())


def test_what_is_not_simulated_is_refused_by_name(own_group) -> None:
    model, other = nn.Linear(4, 1), dist.group.WORLD

    def group(batch):
        count = batch["mask"].sum()
        dist.all_reduce(count, group=other)
        return mse(model, batch).sum() / count

    assert "process group that was made outside" in examined(group, batch()).unexamined[0]

    def wraps(batch):
        return sequence_mean(DistributedDataParallel(model))(batch)

    def meshes(batch):
        dist.device_mesh.init_device_mesh("cpu", (1,)).size()
        return sequence_mean(model)(batch)

    for step, name in ((wraps, "DistributedDataParallel.__init__"), (meshes, "DeviceMesh")):
        assert name in examined(step, batch()).unexamined[0]
    assert dist.group.WORLD is other


@pytest.fixture
def own_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("own_group")
def test_wrapped_modules_average_when_backward_ends() -> None:
    model = nn.Linear(4, 1)
    for wrapped in (DistributedDataParallel(model), mg.distributed.prepare(model)):

        def step(batch, wrapped=wrapped):
            sequence_mean(wrapped)(batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        def parts(batch, wrapped=wrapped):
            halves = [{name: held[at::2] for name, held in batch.items()} for at in (0, 1)]
            with wrapped.no_sync():
                sequence_mean(wrapped)(halves[0]).backward()
            sequence_mean(wrapped)(halves[1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)

        assert examined(step, batch()).ok
        assert examined(parts, batch()).ok
        assert examined(token_mean(wrapped), batch()).kinds() == ["denominator"]


def test_functional_collectives_and_groups_made_in_the_step() -> None:
    from torch.distributed import _functional_collectives as functional

    model = nn.Linear(4, 1)

    def step(batch):
        group = dist.new_group([0, 1] if dist.get_world_size() > 1 else [0])
        if dist.get_rank() < 2:
            assert dist.get_world_size(group) == min(2, dist.get_world_size())
            dist.barrier(group)
        count = functional.all_reduce(batch["mask"].sum(), "sum", dist.group.WORLD)
        return mse(model, batch).sum() / count * dist.get_world_size()

    assert examined(step, batch()).ok


@pytest.mark.parametrize("ranks", [1, 0, True, "4", 2.0])
def test_a_number_of_ranks(ranks) -> None:
    with pytest.raises(ExaminationError, match="ranks: expected 2 ranks or more, found"):
        mg.doctor.examine(sequence_mean(nn.Linear(4, 1)), batch(), ranks=ranks)


def test_the_experiment_needs_the_number() -> None:
    with pytest.raises(ExaminationError, match="add ranks=4"):
        mg.doctor.examine(sequence_mean(nn.Linear(4, 1)), batch(), experiments=["ranks"])


def test_an_accumulator_that_was_made_outside(own_group) -> None:
    model = nn.Linear(4, 1)
    accumulators = [mg.GradientAccumulator(model), mg.GradientAccumulator(DistributedDataParallel(model))]
    for accumulator in accumulators:

        def step(batch, accumulator=accumulator):
            accumulator.backward(mse(model, batch), mask=batch["mask"])
            return accumulator.finish()

        assert examined(step, batch()).ok
        accumulator.backward(mse(model, batch()), mask=MASK)
        accumulator.finish()
        accumulator.reset()


def test_a_small_term_that_differs_is_found_at_its_line_and_without_float64(monkeypatch) -> None:
    monkeypatch.setattr(experiment, "widened", None)  # float64 raises
    model = nn.Linear(4, 1)

    def step(batch):
        small = token_mean(model)(batch)
        return sequence_mean(model)(batch) + 1e-3 * small

    (found,) = examined(step, batch()).findings
    assert "sum() / batch" in linecache.getline(__file__, found.line)


def test_what_is_smaller_than_rounding_may_be_is_decided_in_float64(monkeypatch) -> None:
    monkeypatch.setattr(experiment, "_CLEAR", 0.0)
    model = nn.Linear(4, 1)

    def step(batch):
        return sequence_mean(model)(batch) + 2e-4 * token_mean(model)(batch)

    report = examined(step, batch())
    assert report.kinds() == ["denominator"], report


def test_equal_entries_stay_equal_where_rounding_is_multiplied() -> None:
    weight = nn.Parameter(torch.rand(5))

    def step(batch):
        scores = weight.exp() * batch["x"].sum(-1)
        largest = scores.amax(1, keepdim=True).clone()
        return torch.where(scores == largest, scores, 0).sum() / batch["mask"].sum()

    assert examined(step, batch()).kinds() == ["denominator"]


def test_gradients_in_bfloat16_are_compared_in_float64() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 1)).bfloat16()

    def step(batch):
        return sequence_mean(model)({**batch, "x": batch["x"].bfloat16()}).float()

    assert examined(step, batch()).ok
    step_of_tokens = token_mean(model)
    assert examined(lambda b: step_of_tokens({**b, "x": b["x"].bfloat16()}), batch()).kinds() == [
        "denominator"
    ]
    assert {param.dtype for param in model.parameters()} == {torch.bfloat16}


def test_a_plain_examination_finds_both() -> None:
    model = nn.Linear(4, 1)

    def step(batch):
        return F.mse_loss(model(batch["x"]).squeeze(-1), batch["y"]) + token_mean(model)(batch)

    report = mg.doctor.examine(step, batch(), padding={"x": "mask", "y": "mask"}, ranks=2)
    assert {"padding-leak", "denominator"} <= set(report.kinds())


def test_an_accumulator_looks_for_its_own_ranks_again_after_an_error() -> None:
    model = nn.Linear(2, 1)
    accumulator = mg.GradientAccumulator(model)
    before = accumulator._ranks

    def step(batch):
        raise RuntimeError("the step's own")

    with pytest.raises(RuntimeError, match="the step's own"):
        mg.doctor.examine(lambda batch: (accumulator, step(batch)), {"x": torch.ones(8, 2)}, ranks=4)
    assert accumulator._ranks is before
