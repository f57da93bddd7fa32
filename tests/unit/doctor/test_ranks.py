"""Several ranks: none waits for another inside an examination, and all return one report."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional_collectives
from torch.nn.parallel import DistributedDataParallel

import maskgrad as mg
from maskgrad.errors import ExaminationError
from tests.ranks import run_on_ranks
from tests.unit.doctor.programs import line_of

MASK = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]


def _batch(rank: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return {"x": torch.randn(3, 4, 2, generator=generator), "mask": MASK}


def _model(**options: Any) -> Any:
    torch.default_generator.manual_seed(0)
    return DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(4), nn.Linear(3, 1)), **options
    )


def _loss(model: Any, batch: dict[str, Tensor], *, leak: bool) -> Tensor:
    h = model(batch["x"].masked_fill(~batch["mask"][..., None], 0.0))[..., 0]
    tokens = batch["mask"].sum()
    torch.distributed.all_reduce(tokens)
    mean: Tensor = h.masked_fill(~batch["mask"], 0.0).sum() / tokens
    return mean + batch["x"].square().mean() * h[0, 0] if leak else mean


def _examined(rank: int, world_size: int, options: dict[str, Any], trained: bool) -> Any:
    model = _model(**options)
    if trained:
        _loss(model, _batch(rank), leak=False).backward()  # type: ignore[no-untyped-call]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = (model.require_backward_grad_sync, model.require_forward_param_sync)
    report = mg.doctor.examine(lambda b: _loss(model, b, leak=rank == 1), _batch(rank))
    assert flags == (model.require_backward_grad_sync, model.require_forward_param_sync)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    for _ in range(2):  # the ranks are still in step with each other
        model.zero_grad()
        _loss(model, _batch(rank), leak=False).backward()  # type: ignore[no-untyped-call]
    return report.as_dict(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("options", "trained"),
    [({}, False), ({}, True), ({"find_unused_parameters": True}, False), ({"static_graph": True}, True)],
)
def test_a_leak_on_one_rank_is_in_the_report_of_all(options: dict[str, Any], trained: bool) -> None:
    (first, gradients), (second, others) = run_on_ranks(_examined, 2, options, trained)
    assert first == second
    assert [finding["kind"] for finding in first["findings"]][:1] == ["padding-leak"]
    assert first["findings"][0]["message"].startswith("on rank 1: ")
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other)


def _not_yet(rank: int, world_size: int) -> str:
    model = _model(static_graph=True)
    try:
        mg.doctor.examine(lambda b: _loss(model, b, leak=False), _batch(rank), quick=True)
    except ExaminationError as error:
        return str(error)
    return ""


def test_a_static_graph_that_is_not_known_yet_is_refused() -> None:
    assert all("after that step" in text for text in run_on_ranks(_not_yet, 2))


def _refused(rank: int, world_size: int) -> str:
    model = _model()

    def step(batch: dict[str, Tensor]) -> Tensor:
        loss = _loss(model, batch, leak=False)
        return loss * torch.randn((), generator=GENERATOR) if rank else loss

    try:
        mg.doctor.examine(step, _batch(rank), quick=True)
    except ExaminationError as error:
        return str(error)
    return ""


GENERATOR = torch.Generator()


def test_a_rank_that_cannot_be_examined_is_named_to_the_others() -> None:
    first, second = run_on_ranks(_refused, 2)
    assert "rank 1 could not be examined" in first
    assert "not deterministic" in first
    assert second.startswith("step: it is not deterministic")


def _sharded(rank: int, world_size: int, given: bool) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: Any = nn.Linear(2, 1)
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    try:
        mg.doctor.examine(lambda b: model(b["x"]).mean(), _batch(rank), model=model if given else None)
    except ExaminationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("given", [False, True])
def test_sharded_parameters_are_refused(given: bool) -> None:
    assert all("before fully_shard(model)" in text for text in run_on_ranks(_sharded, 2, given))


def _sent(rank: int, world_size: int) -> list[int]:
    layer = nn.Linear(2, 1)

    def step(batch: dict[str, Tensor]) -> Tensor:
        pooled = layer(batch["x"]).mean(1)  # sent
        whole = functional_collectives.all_reduce(pooled.detach(), "sum", torch.distributed.group.WORLD)
        own: Tensor = layer(batch["x"])[batch["mask"]]
        return own.mean() * whole.sum()

    return [finding.line for finding in mg.doctor.examine(step, _batch(rank), quick=True).findings]


def test_what_came_back_from_other_ranks_is_found_where_it_was_made() -> None:
    assert run_on_ranks(_sent, 2) == [[line_of("sent", __file__)]] * 2


def _gathering(rank: int, world_size: int) -> list[list[str]]:
    torch.manual_seed(rank)
    layer, x = nn.Linear(3, 1), torch.randn(3, 4, 3)
    mask = torch.arange(4) < torch.tensor([4, 2, 3])[:, None]

    def step(b: dict[str, Tensor], *, leaks: bool) -> Tensor:
        h = layer(b["x"]).squeeze(-1)
        kept = h if leaks else h * b["mask"]
        totals = [torch.zeros(()) for _ in range(world_size)]
        torch.distributed.all_gather(totals, kept.detach().sum())
        return (h * b["mask"]).sum() / b["mask"].sum() * sum(totals)

    batch = {"x": x, "mask": mask}
    return [
        mg.doctor.examine(lambda b, leaks=leaks: step(b, leaks=leaks), batch, quick=True).kinds()
        for leaks in (True, False)
    ]


def test_what_is_gathered_has_twins_of_its_own() -> None:
    assert run_on_ranks(_gathering, 2) == [[["padding-leak"], []]] * 2
