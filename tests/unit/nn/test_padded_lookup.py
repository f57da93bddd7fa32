"""Tables with a capacity: trained as without, by every optimizer, eagerly and compiled once for all batches."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.nn import padded_lookup
from maskgrad.optim import attached_gradient
from maskgrad.optim.optimizer import MaskedOptimizer

HEIGHT, WIDTH, LOOKUPS = 11, 3, 8
NAN = float("nan")


def embedding(**options: Any) -> mg.nn.Embedding:
    torch.manual_seed(4)
    return mg.nn.Embedding(HEIGHT, WIDTH, dtype=torch.float64, **options)


def bag(**options: Any) -> mg.nn.EmbeddingBag:
    torch.manual_seed(4)
    return mg.nn.EmbeddingBag(HEIGHT, WIDTH, dtype=torch.float64, **options)


def indices(step: int, dtype: torch.dtype = torch.int64) -> Tensor:
    torch.manual_seed(step)
    return torch.randint(HEIGHT, (4, 2)).to(dtype)


def train(table: Any, optimizer: torch.optim.Optimizer, call: Any = None, steps: int = 4) -> Tensor:
    """Two backward passes a step; the loss reads the table twice."""
    call = table if call is None else call
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(2):
            rows = indices(2 * step + part)
            (call(rows).square().sum() + call(rows.flip(1)).sin().sum()).backward()
        optimizer.step()
    if isinstance(optimizer, MaskedOptimizer):
        optimizer.flush()
    return table.weight.detach()


@pytest.mark.parametrize("extra", [{}, {"unspecified": "zero"}, {"state": "row"}], ids=str)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"max_norm": 0.7, "norm_type": 1.0}], ids=str)
@pytest.mark.parametrize("make", [embedding, bag])
def test_trained_as_without(make: Any, options: dict[str, Any], extra: dict[str, Any]) -> None:
    options = options | ({"mode": "sum"} if make is bag else {})
    results = []
    for capacity in (None, 4 * LOOKUPS):
        table = make(capacity=capacity, **options)
        results.append(train(table, mg.optim.Adagrad(table.parameters(), lr=0.1, **extra)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_the_gradient_is_attached_and_its_size_is_constant() -> None:
    table = embedding(capacity=2 * LOOKUPS, padding_idx=2)
    for step in range(3):
        mg.attach_gradient(table.weight, None)
        rows = indices(step)[: step + 1]
        found = table(rows)
        assert torch.equal(found, nn.functional.embedding(rows, table.weight))
        found.mul(torch.arange(1.0, rows.numel() + 1).view(*rows.shape, 1)).sum().backward()
        gradient = attached_gradient(table.weight)
        assert isinstance(gradient, mg.PaddedRows)
        assert torch.equal(table.weight.grad.to_dense(), gradient.to_dense())
        assert (gradient.capacity, gradient.listed) == (2 * LOOKUPS, rows.numel())
        expected = torch.zeros(HEIGHT, dtype=torch.float64)
        expected.index_add_(0, rows.flatten(), torch.arange(1.0, rows.numel() + 1, dtype=torch.float64))
        expected[2] = 0
        assert torch.equal(gradient.to_dense(), expected[:, None].expand(-1, WIDTH))
        assert 2 not in gradient.rows


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("make", [embedding, bag])
def test_one_graph_for_all_batches(make: Any, backend: str) -> None:
    eager, traced = make(capacity=4 * LOOKUPS, padding_idx=2), make(capacity=4 * LOOKUPS, padding_idx=2)
    compiled = torch.compile(traced, backend=backend, fullgraph=True)
    expected = train(eager, mg.optim.Adam(eager.parameters(), lr=0.1))
    optimizer = mg.optim.Adam(traced.parameters(), lr=0.1)
    with mg.count_recompiles() as compilations:
        found = train(traced, optimizer, compiled)
    assert compilations.number == 1
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # what it imports of PyTorch
def test_compiled_by_inductor() -> None:
    table, plain = embedding(capacity=LOOKUPS), embedding()
    compiled = torch.compile(lambda rows: table(rows).square().sum(), fullgraph=True)
    for step in range(2):
        mg.attach_gradient(table.weight, None)
        plain.weight.grad = None
        compiled(indices(step)).backward()
        plain(indices(step)).square().sum().backward()
        torch.testing.assert_close(attached_gradient(table.weight).to_dense(), plain.weight.grad.to_dense())


def test_equal_look_ups_of_one_graph_count_twice() -> None:
    table = embedding(capacity=2 * LOOKUPS)
    torch.compile(
        lambda rows: (table(rows) + table(rows)).sum(), backend="aot_eager_decomp_partition", fullgraph=True
    )(indices(0)).backward()
    assert attached_gradient(table.weight).to_dense().sum() == 2 * LOOKUPS * WIDTH


def test_the_operator_is_registered_as_it_should_be() -> None:
    arguments = (torch.tensor([0, 1]), torch.ones(2, WIDTH), -1, 0)
    operator = torch.ops.maskgrad.add_padded_gradient.default
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


BAGS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"mode": mode, **options}, arguments)
    for mode in ("sum", "mean")
    for options in ({}, {"padding_idx": 2}, {"padding_idx": -1})
    for arguments in (
        (torch.tensor([[2, 5], [10, 2], [2, 2]]),),
        (torch.tensor([2, 5, 10, 2, 2]), torch.tensor([0, 0, 3])),  # an empty bag
        (torch.tensor([2, 5, 10], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)),
        (torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])),
    )
]


@pytest.mark.parametrize(("options", "arguments"), BAGS)
def test_bags(options: dict[str, Any], arguments: tuple[Any, ...]) -> None:
    ours, theirs = bag(capacity=LOOKUPS, **options), bag(**options)
    with torch.no_grad():
        for table in (ours, theirs):
            table.weight[2] = NAN  # a row of padding is not read
    if "padding_idx" not in options or options["padding_idx"] != 2:
        ours.weight.data[2] = theirs.weight.data[2] = 1.0
    found, expected = ours(*arguments), theirs(*arguments)
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(found)
    found.backward(slope)
    expected.backward(slope)
    torch.testing.assert_close(attached_gradient(ours.weight).to_dense(), theirs.weight.grad.to_dense())


@pytest.mark.parametrize("padding", [None, 5])
def test_weighted_bags_and_the_last_offset(padding: int | None) -> None:
    results = []
    for capacity in (LOOKUPS, None):
        table = bag(capacity=capacity, mode="sum", include_last_offset=True, padding_idx=padding)
        weights = torch.arange(1.0, 6, dtype=torch.float64).requires_grad_()
        sums = table(torch.tensor([2, 5, 10, 2, 2]), torch.tensor([0, 0, 3, 4]), weights)
        sums.square().sum().backward()
        gradient = attached_gradient(table.weight) if capacity else table.weight.grad
        results.append((sums, weights.grad, gradient.to_dense()))
    torch.testing.assert_close(*results)


def test_mistakes_in_bags_are_pytorchs() -> None:
    rows, offsets = torch.tensor([2, 5]), torch.tensor([0])
    calls: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({"mode": "sum"}, (rows, offsets, torch.ones(3, dtype=torch.float64))),
        ({"mode": "mean"}, (rows, offsets, torch.ones(2, dtype=torch.float64))),
        ({}, (rows,)),
        ({}, (rows[None], offsets)),
        ({}, (rows[None, None],)),
    ]
    for options, arguments in calls:
        said = []
        for capacity in (None, LOOKUPS):
            with pytest.raises((ValueError, NotImplementedError)) as raised:
                bag(capacity=capacity, **options)(*arguments)
            said.append((type(raised.value), str(raised.value)[:35]))
        assert said[0] == said[1], said


def test_too_many_rows() -> None:
    table = embedding(capacity=LOOKUPS)
    with pytest.raises(
        ValueError, match=r"9 lookups may refer to 9 different rows, more than the table's capacity=8"
    ):
        table(torch.arange(9))
    assert attached_gradient(table.weight) is None
    table(indices(0)).sum().backward()
    before = attached_gradient(table.weight)
    with pytest.raises(
        ValueError, match=r"up to 11 different rows.*It is the sum of several backward passes"
    ):
        table(indices(1)).sum().backward()
    assert attached_gradient(table.weight) is before
    table(torch.empty(0, dtype=torch.int64)).sum().backward()  # adds nothing
    everything = embedding(capacity=HEIGHT)
    for step in range(5):
        everything(indices(step)).sum().backward()
        everything(torch.arange(HEIGHT).repeat(3)).sum().backward()
    assert attached_gradient(everything.weight).capacity == HEIGHT


def test_arguments_that_are_refused() -> None:
    for capacity in (1.5, True, "8"):
        with pytest.raises(TypeError, match="capacity must be an integer, the number of rows, found"):
            embedding(capacity=capacity)
    with pytest.raises(ValueError, match="capacity must be at least 1, found 0"):
        embedding(capacity=0)
    for options, reason in (
        ({"sparse": False}, "sparse=False"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
    ):
        for make in (embedding, bag):
            with pytest.raises(ValueError, match=f"capacity=8 is for sparse gradients, which {reason}"):
                make(capacity=8, **options)
    with pytest.raises(ValueError, match='which mode="max" excludes'):
        bag(capacity=8, mode="max")


def test_where_a_gradient_cannot_be_attached_it_is_dense() -> None:
    table = embedding(capacity=LOOKUPS)
    with torch.no_grad():
        assert not table(indices(0)).requires_grad
    taken = torch.func.grad(
        lambda weight: torch.func.functional_call(table, {"weight": weight}, indices(0)).sum()
    )
    expected = torch.zeros(HEIGHT, dtype=torch.float64).index_add_(
        0, indices(0).flatten(), torch.ones(8).double()
    )
    assert torch.equal(taken(table.weight.detach()), expected[:, None].expand(-1, WIDTH))
    assert torch.func.vmap(table)(indices(0)).shape == (4, 2, WIDTH)
    scaled = embedding(capacity=LOOKUPS)
    scaled.weight.data.abs_()
    nn.utils.parametrize.register_parametrization(scaled, "weight", nn.Softplus(beta=1e9), unsafe=True)
    original = scaled.parametrizations.weight.original
    scaled(indices(0)).sum().backward()
    assert torch.equal(original.grad, expected[:, None].expand(-1, WIDTH))
    assert attached_gradient(table.weight) is None


def test_second_derivatives_are_refused() -> None:
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        embedding(capacity=LOOKUPS)(indices(0)).square().sum().backward(create_graph=True)


def test_an_attached_gradient_of_another_kind_stays() -> None:
    table = embedding(capacity=LOOKUPS)
    theirs = mg.masked(torch.ones(HEIGHT, WIDTH), torch.ones(HEIGHT, WIDTH, dtype=torch.bool))
    mg.attach_gradient(table.weight, theirs)
    with pytest.raises(ValueError, match="has a gradient already, a MaskedTensor"):
        table(indices(0)).sum().backward()


def test_a_weight_that_is_used_elsewhere_too_is_told() -> None:
    table = embedding(capacity=LOOKUPS)
    for loss in (table(indices(0)).sum() + table.weight.sum(), table.weight.sum() + table(indices(0)).sum()):
        table.weight.grad = None
        with pytest.raises(
            (RuntimeError, ValueError), match=r"is masked .*\.to_dense\(\)|without a capacity"
        ):
            loss.backward()


def test_copied_pickled_and_described() -> None:
    table = embedding(capacity=LOOKUPS)
    for again in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        again(indices(0)).sum().backward()
        assert attached_gradient(again.weight).capacity == LOOKUPS
    assert attached_gradient(table.weight) is None
    assert "capacity=8" in repr(table)
    assert "capacity=8" in repr(bag(capacity=LOOKUPS))
    assert "capacity" not in repr(embedding())
    assert list(table.state_dict()) == ["weight"]
    for kind in (mg.nn.Embedding, mg.nn.EmbeddingBag):
        assert kind.from_pretrained(torch.ones(2, 1), freeze=False, capacity=3).capacity == 3
        assert kind(2, 1, device="meta", capacity=3).weight.is_meta


def test_on_a_device_without_sparse_tensors_slots_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_lookup, "supports_dynamic_shapes", lambda device: False)
    for table in (embedding(), bag(mode="sum")):
        for step in range(2):
            table(indices(step)).sum().backward()
        assert attached_gradient(table.weight).capacity == 2 * LOOKUPS
        dense = type(table)(HEIGHT, WIDTH, sparse=False)
        dense(indices(0)).sum().backward()
        assert dense.weight.grad.layout is torch.strided


def test_scaled_losses() -> None:
    results = []
    for capacity in (None, LOOKUPS):
        table = embedding(capacity=capacity)
        optimizer, scaler = (
            mg.optim.Adagrad(table.parameters(), lr=0.1),
            mg.amp.GradScaler("cpu", init_scale=4.0),
        )
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale(table(indices(1)).square().sum() * factor).backward()
            scaler.unscale_(optimizer)
            mg.clip_grad_norm_(table.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        results.append((table.weight.detach(), scaler.get_scale()))
    torch.testing.assert_close(*results)
    assert results[0][1] == 2.0


def test_averages_follow_the_rows_that_move() -> None:
    results = []
    for capacity in (None, 4 * LOOKUPS):
        table = embedding(capacity=capacity)
        average = mg.optim.ExponentialMovingAverage(table.parameters(), decay=0.5)
        optimizer = mg.optim.SGD(table.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            table(indices(step)).square().sum().backward()
            optimizer.step()
            average.update()
        results.append(average.averages()[0])
    torch.testing.assert_close(*results)


def test_gradients_of_each_sample_leave_nothing_behind() -> None:
    table = embedding(capacity=LOOKUPS)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(2 * WIDTH, 1).double())
    rows, target = indices(0), torch.zeros(4, 1, dtype=torch.float64)
    found = mg.per_sample_grad(model, nn.functional.mse_loss, rows, target)
    table.capacity, plain = None, copy.deepcopy(model)
    expected = mg.per_sample_grad(plain, nn.functional.mse_loss, rows, target)
    assert attached_gradient(table.weight) is None
    for name, gradient in expected.items():
        torch.testing.assert_close(_dense(found[name]), _dense(gradient))


def _dense(gradient: Any) -> Tensor:
    return gradient.filled(0.0) if isinstance(gradient, mg.MaskedTensor) else gradient.to_dense()
