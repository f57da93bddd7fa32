"""An optimizer's step as one operator of a whole graph, between what reads and writes the parameters."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import maskgrad as mg
from tests.integration.test_compiled_steps import OPTIMIZERS, parameters
from tests.poison import nan

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script.* is deprecated:DeprecationWarning"),
]
BACKENDS = ("eager", "aot_eager", "inductor")


def give_gradients(params: dict[str, Tensor], number: int) -> None:
    """Gradients of other kinds in each step; the first step has none at all."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randint(6, (1, 4), generator=generator)
    mask = torch.rand(6, 3, generator=generator) < 0.5
    coo = torch.sparse_coo_tensor(rows, torch.randn(4, 3, generator=generator), (6, 3), check_invariants=True)
    if number:
        params["dense"].grad = coo if number == 4 else torch.randn(6, 3, generator=generator)
    if number > 1:
        params["coo"].grad = coo
    if number > 2:
        mg.attach_gradient(params["masked"], mg.masked(torch.where(mask, 1.5, nan), mask))


def copies_of(params: dict[str, Tensor]) -> list[Tensor]:
    return [param.detach().clone() for param in params.values()]


@torch.no_grad()
def update(optimizer: Any) -> None:
    optimizer.step()
    optimizer.zero_grad()


def whole(function: Any, backend: str = "eager") -> tuple[Any, CompileCounterWithBackend]:
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True), counter


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_graph_for_gradients_of_all_kinds(name: str) -> None:
    ours, theirs = parameters(), parameters()
    optimizers = [getattr(mg.optim, name)([*params.values()], lr=0.01) for params in (ours, theirs)]
    fast, counter = whole(update)
    for number in range(6):
        for params in (ours, theirs):
            give_gradients(params, number)
        fast(optimizers[0])
        update(optimizers[1])
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] *= 0.9  # as a scheduler does
    assert counter.frame_count == 1
    start = parameters()
    for kind, param in ours.items():
        assert torch.equal(param, theirs[kind]), kind
        assert not torch.equal(param, start[kind]), kind
        assert param.grad is None
        assert mg.optim.attached_gradient(param) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_order_of_the_program_is_kept(backend: str) -> None:
    """What stands before the step sees old parameters, what stands after it new ones; nothing is stepped twice."""

    @torch.no_grad()
    def program(params: dict[str, Tensor], optimizer: Any) -> tuple[Any, ...]:
        before = [param.sum() for param in params.values()]
        params["coo"].mul_(0.5)
        optimizer.step()
        after = [param.sum() for param in params.values()]
        optimizer.zero_grad()
        gone = params["dense"].grad is None
        optimizer.step()  # without gradients
        return before, after, gone, sum(param.square().sum() for param in params.values())

    ours, theirs = parameters(), parameters()
    optimizers = [mg.optim.Adam([*params.values()], lr=0.1) for params in (ours, theirs)]
    fast, counter = whole(program, backend)
    for number in range(5):
        results = []
        for params, optimizer, function in zip((ours, theirs), optimizers, (fast, program), strict=True):
            give_gradients(params, number)
            results.append(function(params, optimizer))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(copies_of(ours), copies_of(theirs))
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backward_pass_writes_over_parameters(backend: str) -> None:
    """Inductor takes the memory of a parameter that a step has written, and that is saved, for its own."""

    def around(param: Tensor, optimizer: Any) -> Tensor:
        optimizer.step()
        optimizer.zero_grad()
        return param.square().sum()

    def under_no_grad(param: Tensor, optimizer: Any) -> Tensor:
        with torch.no_grad():
            optimizer.step()
        return param.square().sum()

    param = torch.ones(4, 3, requires_grad=True)
    optimizer = mg.optim.SGD([param], lr=0.1)
    fast = torch.compile(around, backend=backend)
    param.grad = torch.ones(4, 3)
    fast(param, optimizer).backward()
    torch.testing.assert_close(param, torch.full((4, 3), 0.9))
    torch.testing.assert_close(param.grad, torch.full((4, 3), 1.8))
    before = param.detach().clone()
    fast = torch.compile(under_no_grad, backend=backend)
    if backend == "eager":  # nobody plans its memory
        fast(param, optimizer).backward()
        return
    with pytest.raises(RuntimeError, match="in one compiled graph with operations that record gradients"):
        fast(param, optimizer)
    assert torch.equal(param, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refused_step_changes_nothing(backend: str) -> None:
    params = parameters()
    optimizer = mg.optim.Adagrad([*params.values()], lr=0.1)
    fast, _ = whole(update, backend)
    give_gradients(params, 3)
    fast(optimizer)
    give_gradients(params, 3)
    optimizer.param_groups[0]["lr"] = nan
    before, state = copies_of(params), copy.deepcopy(optimizer.state_dict()["state"])
    # backend="eager" leaves no_grad() behind when something fails, what PyTorch computes, too
    with torch.enable_grad(), pytest.raises(ValueError, match=r"lr|learning rate"):
        fast(optimizer)
    torch.testing.assert_close(copies_of(params), before, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)
    assert params["dense"].grad is not None


def test_hooks_are_called_once_a_step() -> None:
    seen: list[str] = []
    param = torch.ones(3, requires_grad=True)
    optimizer = mg.optim.SGD([param], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    fast, _ = whole(update)
    for _ in range(2):
        param.grad = torch.ones(3)
        fast(optimizer)
    torch.testing.assert_close(param, torch.full((3,), 0.8))
    assert seen == ["before", "after"] * 2


def test_each_graph_steps_its_own_optimizer() -> None:
    """Copies, loaded ones and those with another group are different optimizers, or have other parameters."""
    param = torch.ones(3, requires_grad=True)
    optimizer = mg.optim.SGD([param], lr=0.1)
    fast, _ = whole(update)
    others = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
    optimizer.load_state_dict(optimizer.state_dict())
    for one in (optimizer, *others):
        (own,) = one.param_groups[0]["params"]
        own.grad = torch.ones(3)
        fast(one)
        torch.testing.assert_close(own, torch.full((3,), 0.9))
    added = torch.ones(2, requires_grad=True)
    optimizer.add_param_group({"params": [added]})
    added.grad = torch.ones(2)
    fast(optimizer)
    torch.testing.assert_close(added, torch.full((2,), 0.9))
    torch.testing.assert_close(param, torch.full((3,), 0.9))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_rows_that_are_behind_are_stepped_outside(fullgraph: bool) -> None:
    """With ``unspecified="zero"`` the graph breaks: it would change the version by which loaded values are known."""
    params = torch.ones(4, 2).requires_grad_(), torch.ones(4, 2).requires_grad_()
    optimizers = [mg.optim.SGD([param], lr=0.1, weight_decay=0.5, unspecified="zero") for param in params]
    fast = torch.compile(update, backend="aot_eager", fullgraph=fullgraph)
    for row in (0, 2):
        for param in params:
            param.grad = torch.sparse_coo_tensor([[row]], torch.ones(1, 2), (4, 2), check_invariants=True)
        if fullgraph:
            with pytest.raises(torch._dynamo.exc.Unsupported):
                fast(optimizers[0])
        else:
            fast(optimizers[0])
            update(optimizers[1])
    for optimizer in optimizers:
        optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(*params) is not fullgraph or torch.equal(params[0], torch.ones(4, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_option_that_is_set_by_hand_later(backend: str) -> None:
    """The graph does not know of it; nothing that is owed to a row is lost when a state is loaded."""
    params = torch.ones(4, 2).requires_grad_(), torch.ones(4, 2).requires_grad_()
    optimizers = [mg.optim.SGD([param], lr=0.1, weight_decay=0.5) for param in params]
    fast = torch.compile(update, backend=backend)
    for row in range(4):
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = torch.sparse_coo_tensor([[row]], torch.ones(1, 2), (4, 2), check_invariants=True)
            if row == 3:
                optimizer.param_groups[0]["unspecified"] = "zero"
        fast(optimizers[0])
        update(optimizers[1])
    for optimizer in optimizers:
        optimizer.load_state_dict(
            torch.optim.Optimizer.state_dict(optimizer)
        )  # which brings nothing up to date
        optimizer.flush()
    torch.testing.assert_close(*params)
    assert params[0].max() < 1


def test_zeroed_instead_of_removed() -> None:
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    optimizer = mg.optim.SGD([param], lr=0.1)

    def zeroed() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    torch.compile(zeroed, backend="eager")()
    assert torch.equal(param.grad, torch.zeros(3))
    torch.testing.assert_close(param, torch.full((3,), 0.9))


def test_operators_are_registered_as_they_behave() -> None:
    param = torch.ones(3, requires_grad=True)
    optimizer = mg.optim.SGD([param], lr=0.1)
    order = torch.zeros(())
    for operator, arguments in (
        (torch.ops.maskgrad.optimizer_step.default, ([param.detach()], order, optimizer._number)),
        (torch.ops.maskgrad.remove_gradients.default, (order, optimizer._number)),
    ):
        torch.library.opcheck(operator, arguments)
