"""Sequences of different lengths, wherever they are: conversions, autograd, writes; few features; classes in front.

Copies, files, reading and transforms: tests/unit/patterns/suite, with all layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

import maskgrad as mg
from maskgrad.errors import UnsupportedLayoutError
from tests.laws.storage.layouts import BY_NAME, STORAGES, Storage, boolean, entries_of, filled, stored

JAGGED = [storage for storage in STORAGES if storage.layout == torch.jagged]
SOME = [
    BY_NAME[name] for name in ("jagged", "jagged-hybrid", "jagged-batches", "jagged-turned", "jagged-heads")
]


def distinct(storage: Storage) -> Tensor:
    torch.manual_seed(0)
    return (torch.randperm(storage.number).double() / 7 + 0.1).requires_grad_()


#: To another layout.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda x: x.to_dense(),
    "coo": lambda x: x.to_sparse(),
    "coo of one dimension": lambda x: x.to_sparse(1) if len(x.shape) == 1 else x.to_sparse(sparse_dim=x.ndim),
    "csr": lambda x: x.to_sparse(layout=torch.sparse_csr),
    "csc": lambda x: x.to_sparse(layout=torch.sparse_csc),
    "bsr": lambda x: x.to_sparse(layout=torch.sparse_bsr, blocksize=(1, 1)),
    "bsc": lambda x: x.to_sparse(layout=torch.sparse_bsc, blocksize=(1, 1)),
}


@pytest.mark.layouts(per=lambda name: name, keep=2)
@pytest.mark.parametrize("storage", JAGGED, ids=lambda s: s.name)
@pytest.mark.parametrize("name", LAYOUTS)
def test_conversions_go_there_and_back(name: str, storage: Storage) -> None:
    entries = entries_of(storage)
    x, plain = stored(storage, entries), boolean(storage, entries)
    if name.startswith(("c", "b")) and not name.startswith("coo") and len(storage.shape) != 2:
        return  # matrices
    found = LAYOUTS[name](x)
    assert found.layout != torch.jagged
    assert found.mask.tolist() == plain.mask.tolist()
    torch.testing.assert_close(found.filled(0), plain.filled(0), rtol=0, atol=0)
    if storage.places[0] == 0 and not storage.is_flat and 0 not in storage.shape:
        back = found.to_jagged(storage.places[-1])
        assert back.layout == torch.jagged
        assert back.mask.tolist() == plain.mask.tolist()
        torch.testing.assert_close(back.filled(0), plain.filled(0), rtol=0, atol=0)
        found = back
    weights = torch.rand(storage.shape, dtype=torch.float64)
    grads = [torch.autograd.grad((t.filled(0) * weights).sum(), entries)[0] for t in (found, plain)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)


def sent_back(gradient: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: mg.MaskedTensor) -> Any:
        x = x.detach().requires_grad_()
        (x * x).backward(gradient(x))
        return x.grad

    return run


def numbers(x: Any) -> Tensor:
    return torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape)


def in_part(x: Any) -> mg.MaskedTensor:
    return mg.masked(numbers(x), numbers(x) % 3 > 0)


def hooked(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: mg.MaskedTensor) -> Any:
        x = x.detach().requires_grad_()
        seen = []
        x.register_hook(lambda grad: (seen.append(grad.layout), hook(grad))[1])
        (x * x).sum().backward()
        assert seen == [x.layout]
        return x.grad

    return run


def attached(x: mg.MaskedTensor) -> Any:
    param = torch.nn.Parameter(torch.zeros(x.shape, dtype=torch.float64))
    mg.attach_gradient(param, x.detach())
    mg.optim.SGD([param], lr=0.5).step()
    return param.detach()


def clipped(x: mg.MaskedTensor) -> Any:
    x = x.detach().requires_grad_()
    x.grad = x.detach() * 3
    mg.clip_grad_norm_([x], 1.0)
    return x.grad


def kept_where(x: mg.MaskedTensor) -> Any:
    x = x.detach().requires_grad_()
    (mg.mask_gradient(x, numbers(x) % 3 > 0) ** 2).sum().backward()
    return x.grad


def written(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: mg.MaskedTensor) -> Any:
        x = x.detach().clone()
        assert change(x) is x
        return x

    return run


#: What autograd, gradients and writing do, which is to be the same on a Boolean mask.
SITUATIONS: dict[str, Callable[[Any], Any]] = {
    "backward dense": sent_back(numbers), "backward masked": sent_back(in_part),
    "backward coo": sent_back(lambda x: in_part(x).to_sparse()), "backward own": sent_back(lambda x: x.detach()),
    "hook": hooked(lambda grad: grad * 2), "hook that looks": hooked(lambda grad: None),
    "autograd.grad": lambda x: torch.autograd.grad((y := x.detach().requires_grad_()) * y, y, numbers(y))[0],
    "attached": attached, "clipped": clipped, "mask_gradient": kept_where,
    "mul_": written(lambda x: x.mul_(2)), "add_": written(lambda x: x.add_(numbers(x))),
    "sub_": written(lambda x: x.sub_(x)), "clamp_": written(lambda x: x.clamp_(-1, 1)),
    "+=": written(lambda x: x.__iadd__(1)), "relu_": written(lambda x: x.relu_()),
    "copy_": written(lambda x: x.copy_(x * 3)), "transpose_": written(lambda x: x.transpose_(0, 1)),
    "unsqueeze_": written(lambda x: x.unsqueeze_(0)),
}  # fmt: skip


@pytest.mark.layouts(per=lambda name: name, keep=2)
@pytest.mark.parametrize("storage", JAGGED, ids=lambda s: s.name)
@pytest.mark.parametrize("name", SITUATIONS)
def test_situations_agree_with_the_boolean_mask(name: str, storage: Storage) -> None:
    entries = entries_of(storage).detach()
    ours, theirs = (SITUATIONS[name](build(storage, entries)) for build in (stored, boolean))
    if isinstance(theirs, mg.MaskedTensor):
        assert torch.equal(ours.mask, theirs.mask)
        assert ours.layout == torch.jagged
    torch.testing.assert_close(filled(ours), filled(theirs), rtol=0, atol=1e-15)


@pytest.mark.parametrize("storage", SOME, ids=lambda s: s.name)
def test_derivatives_to_the_second_order(storage: Storage) -> None:
    x = stored(storage, distinct(storage).detach()).requires_grad_()
    dim = storage.places[-1]
    assert mg.gradcheck(lambda y: (y.softmax(dim) * y).sum(dim), (x,))
    assert mg.gradcheck(lambda y: y.sin() - y.mean(dim, keepdim=True), (x,))
    with pytest.raises(GradcheckError, match="numeric"):
        mg.gradcheck(lambda y: y * y.detach(), (x,))


@pytest.mark.parametrize(
    "write",
    [lambda x: x.__setitem__((slice(None), 2), 1.0), lambda x: x.fill_(1.0)],
    ids=["setitem", "fill_"],
)
def test_a_write_that_would_need_other_rows_is_refused(write: Callable[[Any], Any]) -> None:
    x = mg.from_lengths(torch.rand(2, 3), torch.tensor([1, 3]), layout=torch.jagged)
    before = x.clone()
    with pytest.raises(UnsupportedLayoutError, match=r"to_dense\(\)"):
        write(x)
    assert torch.equal(x, before)


def test_a_leaf_is_not_replaced_by_other_rows() -> None:
    x = mg.from_lengths(torch.rand(2, 3), torch.tensor([1, 3]), layout=torch.jagged).requires_grad_()
    with torch.no_grad():
        x.mul_(2)
        with pytest.raises(RuntimeError, match="would replace a leaf"):
            x.add_(mg.from_lengths(torch.rand(2, 3), torch.tensor([1, 2]), layout=torch.jagged))


def test_beside_a_mask_a_jagged_operand_is_a_list_of_coordinates() -> None:
    storage = BY_NAME["jagged-behind"]
    x, plain = (build(storage, entries_of(storage).detach()) for build in (stored, boolean))
    other = in_part(plain)
    found, expected = x * other, plain * other
    assert found.layout == torch.strided
    assert torch.equal(found.mask, expected.mask)
    assert torch.equal(found.filled(0), expected.filled(0))
    with pytest.raises(UnsupportedLayoutError, match=r"x\.to_dense\(\)"):
        x.mul(other.to_sparse())


@pytest.mark.every
@pytest.mark.parametrize("combine", [torch.add, torch.mul, torch.maximum, torch.max, torch.equal])
def test_the_same_sequences_at_other_places_are_another_pattern(combine: Callable[..., Any]) -> None:
    square = Storage("square", torch.arange(3) < torch.tensor([2, 0, 3]).unsqueeze(-1), torch.jagged)
    entries = entries_of(square)
    x, plain = stored(square, entries), boolean(square, entries)
    found, expected = combine(x, x.T), combine(plain, plain.T)
    if combine is torch.equal:
        assert found is expected is False
        return
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0), expected.filled(0))
    grads = [torch.autograd.grad(result.sum(), entries)[0] for result in (found, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.every
@pytest.mark.parametrize("name", ["jagged-behind", "jagged-last", "jagged-hybrid"])
@pytest.mark.parametrize("target", ["plain", "jagged", "masked", "probabilities"])
def test_classes_stand_in_front_of_positions_or_behind(target: str, name: str) -> None:
    storage = BY_NAME[name]
    entries = entries_of(storage)
    x, plain = stored(storage, entries), boolean(storage, entries)
    labels: Any = (
        torch.arange(plain.numel() // plain.shape[1]).reshape(plain.shape[0], *plain.shape[2:])
        % plain.shape[1]
    )
    other: Any = labels
    if target == "probabilities":
        labels = other = torch.rand(plain.shape, dtype=torch.float64).softmax(1)
    elif target == "jagged":
        labels, other = x.argmax(1), plain.argmax(1)
    elif target == "masked":
        labels = other = mg.masked(labels, labels >= 0)
    for reduction in ("none", "mean", "sum"):
        found = torch.nn.functional.cross_entropy(x, labels, reduction=reduction)
        expected = torch.nn.functional.cross_entropy(plain, other, reduction=reduction)
        assert found.shape == expected.shape
        if reduction == "none":
            assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(filled(found), filled(expected))
        grads = [
            torch.autograd.grad(filled(r).sum(), entries, retain_graph=True)[0] for r in (found, expected)
        ]
        torch.testing.assert_close(*grads)


@pytest.mark.every
@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "any", "logsumexp", "var", "std", "var_mean", "std_mean", "count_nonzero"]
)
def test_too_few_features_are_unspecified_as_on_a_mask(name: str, size: int) -> None:
    lengths, data = torch.tensor([2, 0, 3]), torch.rand(3, 4, size, dtype=torch.float64)
    x, plain = (mg.from_lengths(data, lengths, layout=layout) for layout in (torch.jagged, torch.strided))
    options: list[dict[str, Any]] = [{}]
    if name.startswith(("var", "std")):
        options += [{"correction": 0}, {"correction": 2}, {"unbiased": False}, {"unbiased": True}]
    for given in options:
        results = [getattr(torch, name)(t, dim=-1, **given) for t in (x, plain)]
        pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True)
        for found, expected in pairs:
            assert torch.equal(found.mask, expected.mask), given
            torch.testing.assert_close(filled(found), filled(expected))


@pytest.mark.every
@pytest.mark.parametrize(
    "run",
    [
        lambda x: x @ torch.ones(0, 2),
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 0), torch.ones(2)),
        lambda x: torch.nn.functional.cosine_similarity(x, x, dim=-1),
        lambda x: torch.nn.functional.pairwise_distance(x, x),
    ],
    ids=["matmul", "linear", "cosine_similarity", "pairwise_distance"],
)
def test_products_without_factors_are_unspecified_as_on_a_mask(run: Callable[[Any], Any]) -> None:
    x = mg.from_lengths(torch.rand(3, 4, 0), torch.tensor([2, 0, 3]), layout=torch.jagged)
    found, expected = run(x), run(x.to_dense())
    assert torch.equal(found.mask, expected.mask)
    assert torch.equal(filled(found), filled(expected))
