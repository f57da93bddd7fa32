"""Whole trainings with `prepare`, step by step against one process on the joint batch."""

from __future__ import annotations

import copy
import dataclasses
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.ranks import run_on_ranks

WORDS = 9


class Tables(nn.Module):
    """Sparse tables and dense layers; a table and a layer that are used when a flag says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=True)
        self.seldom = nn.EmbeddingBag(5, 4, sparse=True, mode="sum")
        self.hidden = nn.Linear(4, 3)
        self.extra = nn.Linear(3, 3)

    def forward(self, words: Tensor, seldom: bool = False) -> Tensor:
        x = self.table(words).sum(1)
        x = self.hidden(x + self.seldom(words % 5) if seldom else x)
        return (self.extra(x) if seldom else x).tanh().sum(1)


class Tied(nn.Module):
    """One weight looked up, sparse, and multiplied with, dense."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=True)
        self.scores = nn.Linear(4, WORDS, bias=False)
        self.scores.weight = self.table.weight
        self.bias = nn.Linear(1, 1)

    def forward(self, words: Tensor, multiply: bool = False) -> Tensor:
        x = self.table(words).sum(1)
        return (self.scores(x) if multiply else x).tanh().sum(1) + self.bias(torch.ones(1))


class OwnLookup(nn.Module):
    """A class that nobody knows, with a sparse gradient that nothing announces."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(WORDS, 2))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, words: Tensor) -> Tensor:
        return (F.embedding(words, self.rows, sparse=True).sum(1) * self.scale).tanh().sum(1)


class OnlyTables(nn.Module):
    """No dense parameter at all."""

    def __init__(self) -> None:
        super().__init__()
        self.table = mg.nn.Embedding(WORDS, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words).sum(1).tanh().sum(1)


class Slots(OnlyTables):
    """A table whose gradient is attached, in a fixed number of slots."""

    def __init__(self) -> None:
        super().__init__()
        self.table = mg.nn.Embedding(WORDS, 2, capacity=WORDS)


class Sometimes(nn.Module):
    """All that is exchanged is used on some rank only."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.table = nn.Linear(3, 2), nn.Embedding(WORDS, 2, sparse=True)

    def forward(self, words: Tensor, seldom: bool = False) -> Answer:
        x = self.hidden(words.float())
        return Answer((x + self.table(words[:, 0]) if seldom else x).tanh().sum(1))


@dataclasses.dataclass
class Answer:
    """What pytrees do not know."""

    scores: Tensor


class Masked(nn.Module):
    """Answers with a MaskedTensor in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=True)
        self.hidden = nn.Linear(4, 3)
        self.idle = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> dict[str, Any]:
        x = mg.masked(self.table(words), (words != 0).unsqueeze(-1))
        return {"out": self.hidden(x.filled(0)).sum(1), "masked": x, "count": 3}


def batches(step: int, rank: int, number: int = 4) -> Tensor:
    return torch.randint(0, WORDS, (number, 3), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(output: Any) -> Tensor:
    if isinstance(output, dict):
        return output["out"].square().mean() + output["masked"].sum().filled(0) / 12
    if isinstance(output, Answer):
        output = output.scores
    return (output - 1).square().mean()


def made(kind: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(5)
    return kind().to(dtype)


def state(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in module.parameters()]).clone()


Flags = Callable[[int, int], dict[str, Any]]


def no_flags(step: int, rank: int) -> dict[str, Any]:
    return {}


def seldom_on_rank_1(step: int, rank: int) -> dict[str, Any]:
    return {"seldom": rank == 1 and step % 2 == 0}


def never_seldom(step: int, rank: int) -> dict[str, Any]:
    return {"seldom": True}


def multiply_on_rank_0(step: int, rank: int) -> dict[str, Any]:
    return {"multiply": rank == 0 and step > 0}


def course(
    module: nn.Module, model: Any, ranks: list[int], optimizer: str, flags: Flags, steps: int = 4
) -> list[Tensor]:
    """Parameters after each step on the batches of ``ranks`` together."""
    chosen = getattr(mg.optim, optimizer)(module.parameters(), lr=0.1)
    found = []
    for step in range(steps):
        chosen.zero_grad()
        losses = [loss_of(model(batches(step, rank), **flags(step, rank))) for rank in ranks]
        torch.stack(losses).mean().backward()
        chosen.step()
        found.append(state(module))
    return found


SCENARIOS: dict[str, tuple[Callable[[], nn.Module], Flags, dict[str, Any]]] = {
    "tables": (Tables, never_seldom, {}),
    "at the end": (Tables, never_seldom, {"overlap": False, "gradient_as_bucket_view": True}),
    "together": (Tables, never_seldom, {"exchange_bucket_mb": 1.0}),
    "as a whole": (Tables, never_seldom, {"exchange": "dense"}),
    "unused on a rank": (Tables, seldom_on_rank_1, {"find_unused_parameters": True}),
    "static graph": (Tables, never_seldom, {"static_graph": True}),
    "tied": (Tied, multiply_on_rank_0, {}),
    "unknown class": (OwnLookup, no_flags, {}),
    "only tables": (OnlyTables, no_flags, {}),
    "slots": (Slots, no_flags, {}),
    "only on a rank": (Sometimes, seldom_on_rank_1, {}),
    "masked": (Masked, no_flags, {"find_unused_parameters": True}),
    "named": (Tables, never_seldom, {"sparse": ["hidden", "extra.weight"]}),
}


def _training(rank: int, world_size: int, name: str, optimizer: str) -> list[Tensor]:
    kind, flags, options = SCENARIOS[name]
    module = made(kind)
    if rank:
        for p in module.parameters():
            p.data.zero_()  # rank 0's are sent
    model = mg.distributed.prepare(module, **{"exchange_bucket_mb": 0.0, **options})
    return course(module, model, [rank], optimizer, flags)


def check(courses: list[list[Tensor]], expected: list[Tensor]) -> None:
    for found in courses[1:]:
        for one, other in zip(found, courses[0], strict=True):
            assert torch.equal(one, other)  # bit for bit
    for one, wanted in zip(courses[0], expected, strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SCENARIOS)
def test_as_one_process_on_the_joint_batch(name: str) -> None:
    kind, flags, _ = SCENARIOS[name]
    optimizer = "Adagrad" if name in ("tables", "tied") else "SGD"
    module = made(kind)
    expected = course(module, module, [0, 1], optimizer, flags)
    check(run_on_ranks(_training, 2, name, optimizer), expected)


def _accumulating(rank: int, world_size: int) -> list[Tensor]:
    module = made(Tables)
    model = mg.distributed.prepare(module, find_unused_parameters=True, exchange_bucket_mb=0)
    optimizer = mg.optim.SGD(module.parameters(), lr=0.1)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            # what only the first half uses must be exchanged with the second
            (loss_of(model(batches(step, rank), seldom=rank == 0)) / 2).backward()
        (loss_of(model(batches(step + 10, rank))) / 2).backward()
        optimizer.step()
        found.append(state(module))
    return found


def test_gradients_accumulated_without_exchange() -> None:
    module = made(Tables)
    optimizer = mg.optim.SGD(module.parameters(), lr=0.1)
    expected = []
    for step in range(3):
        optimizer.zero_grad()
        parts = [loss_of(module(batches(step, rank), seldom=rank == 0)) for rank in (0, 1)]
        parts += [loss_of(module(batches(step + 10, rank))) for rank in (0, 1)]
        torch.stack(parts).mean().backward()
        optimizer.step()
        expected.append(state(module))
    check(run_on_ranks(_accumulating, 2), expected)


def _uneven(rank: int, world_size: int, kind: Callable[[], nn.Module], initial: bool) -> Tensor:
    module = made(kind)
    model = mg.distributed.prepare(module, exchange_bucket_mb=0)
    optimizer = mg.optim.SGD(module.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=initial):
        for step in range(2 + 2 * rank):
            optimizer.zero_grad()
            if step == 1:
                with model.no_sync():
                    loss_of(model(batches(step + 20, rank))).backward()
            loss_of(model(batches(step, rank))).backward()
            optimizer.step()
    return state(module)


@pytest.mark.parametrize("number", [0, 1], ids=["tables and layers", "only tables"])
@pytest.mark.parametrize("initial", [True, False])
def test_ranks_with_more_input_than_others(number: int, initial: bool) -> None:
    kind = (OwnAndDense, OnlyTables)[number]
    module = made(kind)
    optimizer = mg.optim.SGD(module.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        ranks = [0, 1] if step < 2 else [1]
        losses = [loss_of(module(batches(step, rank))) for rank in ranks]
        if step == 1:
            losses += [loss_of(module(batches(step + 20, rank))) for rank in ranks]
        (torch.stack(losses).sum() / (2 if initial else len(ranks))).backward()
        optimizer.step()
    for found in run_on_ranks(_uneven, 2, kind, initial):
        torch.testing.assert_close(found, state(module), rtol=1e-4, atol=1e-5)


class OwnAndDense(nn.Module):
    """All parameters are used every time, tables and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = OwnLookup(), nn.Linear(1, 1)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.own(words).unsqueeze(1)).squeeze(1)


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


def _half(rank: int, world_size: int) -> list[Any]:
    module = made(OnlyTables, torch.float16)
    model = mg.distributed.prepare(module)
    (model(torch.tensor([[1, 1, 1]])).sum() * 20000).backward()
    gradient = module.table.weight.grad
    return [gradient.dtype, gradient.is_sparse, gradient.to_dense().isfinite().all().item()]


def test_half_precision() -> None:
    assert run_on_ranks(_half, 2) == [[torch.float16, True, True]] * 2


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
    assert rows.grad is None
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
    module = nn.ModuleDict({"shared": nn.Linear(2, 2), "sharded": mg.distributed.ShardedEmbedding(7, 2)})
    module.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(words: Tensor) -> Tensor:
        return module["shared"](module["sharded"](words)).sum()

    module.forward = forward
    model = mg.distributed.prepare(module)
    model(torch.tensor([1, 2])).backward()
    assert module["shared"].weight.grad is not None


@pytest.mark.parametrize("program", [_state_dicts, _bystanders])
def test_on_two_ranks(program: Any) -> None:
    run_on_ranks(program, 2)


def _refused(rank: int, world_size: int, name: str) -> tuple[str, str]:
    module: Any = made(Tables)
    options: dict[str, Any] = {}
    if name == "size" and rank:
        module.table = nn.Embedding(WORDS + 1, 4, sparse=True)
    if name == "dtype" and rank:
        module.hidden.double()
    if name == "name" and rank:
        module.other = module.table
        del module.table
    if name == "way":
        options = {"exchange": "sparse" if rank else "auto"}
    if name == "option":
        options = {"find_unused_parameters": bool(rank)}
    if name == "unknown way" and rank:
        options = {"exchange": "fast"}
    if name == "unknown part" and not rank:
        options = {"sparse": ["taple"]}
    if name == "foreign" and rank:
        options = {"sparse": [nn.Linear(1, 1)]}
    if name == "no module" and rank:
        module = 3
    before = None if module == 3 else state(module)
    try:
        mg.distributed.prepare(module, **options)
    except Exception as error:
        found = type(error).__name__, str(error)
    if before is not None:
        assert torch.equal(state(module), before)
    return found


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("size", "ValueError", ["'table.weight' of shape (9, 4)", "(10, 4)"]),
        ("dtype", "ValueError", ["'hidden.weight'", "torch.float64"]),
        ("name", "ValueError", ["'table.weight'"]),
        ("way", "ValueError", ["exchange='auto'", "exchange='sparse'"]),
        ("option", "ValueError", ["find_unused_parameters=False", "find_unused_parameters=True"]),
        ("unknown way", "ValueError", ["'fast'"]),
        ("unknown part", "ValueError", ["'taple'"]),
        ("foreign", "ValueError", ["does not have"]),
        ("no module", "TypeError", ["found int"]),
    ],
)
def test_ranks_that_differ_are_refused_on_all_of_them(name: str, kind: str, words: list[str]) -> None:
    for found, text in run_on_ranks(_refused, 2, name):
        assert found == kind, text
        assert all(word in text for word in words), text


def _order(rank: int, world_size: int, overlap: bool) -> list[str]:
    module = nn.Sequential(nn.Embedding(WORDS, 2, sparse=True), nn.Linear(2, 2), Shift())
    order = []
    model = mg.distributed.prepare(module, exchange_bucket_mb=0, overlap=overlap)
    before = torch.distributed.all_gather

    def noted(*args: Any, **kwargs: Any) -> Any:
        order.append("sent")
        return before(*args, **kwargs)

    module[0].weight.register_hook(lambda g: order.append("gradient of the first layer"))
    torch.distributed.all_gather = noted
    try:
        model(batches(0, rank)).sum().backward()
    finally:
        torch.distributed.all_gather = before
    return order


class Shift(nn.Module):
    """The last layer, whose gradient comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


def test_exchanges_begin_while_the_backward_pass_goes_on() -> None:
    first = "gradient of the first layer"
    for order in run_on_ranks(_order, 2, True):
        assert order[:2] == ["sent", first]
    for order in run_on_ranks(_order, 2, False):
        assert order[:2] == [first, "sent"]


def _broken_gradient(rank: int, world_size: int) -> tuple[str, str]:
    module = made(Tables)
    broken = [rank == 1]

    def spoil(p: Tensor) -> None:
        if broken[0]:
            p.grad = torch.sparse_coo_tensor([[99]], torch.ones(1, 4), p.shape, check_invariants=False)

    module.seldom.weight.register_post_accumulate_grad_hook(spoil)
    alone = copy.deepcopy(module)
    loss_of(alone(batches(0, rank), seldom=True)).backward()
    model = mg.distributed.prepare(module, exchange_bucket_mb=0)
    try:
        loss_of(model(batches(0, rank), seldom=True)).backward()
    except IndexError as error:
        text = str(error)
    # what had been sent before is not written either
    assert torch.equal(module.table.weight.grad.to_dense(), alone.table.weight.grad.to_dense())
    broken[0] = False
    for p in module.parameters():
        p.grad = None
    loss_of(model(batches(0, rank), seldom=True)).backward()  # all goes on
    return text, str(module.seldom.weight.grad.layout)


def test_a_broken_gradient_is_refused_on_all_ranks_and_training_goes_on() -> None:
    for text, layout in run_on_ranks(_broken_gradient, 2):
        assert "gradient of 'seldom.weight'" in text
        assert "99" in text
        assert layout == "torch.sparse_coo"


class Undeclared(nn.Linear):
    """A layer that pretends to be one of torch.nn."""

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words, self.weight, sparse=True).sum()


Undeclared.__module__ = "torch.nn.modules.linear"


def _undeclared(rank: int, world_size: int) -> str:
    torch.manual_seed(0)
    module = Undeclared(2, 3, bias=False)
    model = mg.distributed.prepare(module)
    try:
        model(torch.tensor([0, 1])).backward()
    except RuntimeError as error:
        text = str(error)
    module = copy.deepcopy(module)
    model = mg.distributed.prepare(module, sparse=["weight"])
    model(torch.tensor([0, 1])).backward()
    assert module.weight.grad is not None
    assert module.weight.grad.is_sparse
    return text


def test_a_sparse_gradient_that_nobody_announced_is_named() -> None:
    for text in run_on_ranks(_undeclared, 2):
        assert "'weight'" in text
        assert "sparse=['weight']" in text
