"""Whole models, forward and backward: on MaskedTensors, and with masking as a careful user writes it by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation, LeftOutError
from benchmarks.masked_comparison import FORWARD_AND_BACKWARD
from benchmarks.plan import Family, Point
from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require

__all__ = ["ENCODERS", "FAMILY", "Program", "Step", "contest", "mean_by_hand", "programs"]

NAME = "models"
#: what torch.compile makes of a graph
BACKEND = "inductor"
#: length and width of the two encoders
ENCODERS = ((128, 128), (512, 256))
Step = Callable[[Any, dict[str, Tensor]], Any]


@dataclass(frozen=True)
class Program:
    """A model and its data, and the loss of a step: with maskgrad, by hand, and sample by sample as the definition."""

    name: str
    #: batch, length (0 for none), features
    shape: tuple[int, ...]
    model: Callable[[tuple[int, ...]], nn.Module]
    data: Callable[[tuple[int, ...]], dict[str, Tensor]]
    ours: Step
    by_hand: Step
    #: the same without padding and without holes: what both are compared with, in double precision
    defined: Step
    compiled: bool = False


def _padded(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Sequences of 30 to 100 percent of the length, zeros behind them."""
    size, length, features = shape
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(max(int(0.3 * length), 1), length + 1, (size,), generator=generator)
    real = torch.arange(length) < lengths[:, None]
    x = torch.randn(size, length, features, generator=generator) * real[..., None]
    return {"x": x, "lengths": lengths}


def _real(data: dict[str, Tensor]) -> Any:
    return torch.arange(data["x"].shape[1]) < data["lengths"][:, None]


def mean_by_hand(hidden: Tensor, real: Tensor) -> Tensor:
    """The mean over the real positions of each sequence."""
    kept = real[..., None]
    return torch.where(kept, hidden, 0).sum(1) / kept.sum(1)


def _alone(model: Any, data: dict[str, Tensor], pooled: Callable[[Any, Tensor], Tensor]) -> Tensor:
    """Each sequence without its padding, pooled; the loss of all."""
    rows = [pooled(model, x[None, :n]) for x, n in zip(data["x"], data["lengths"].tolist(), strict=True)]
    return torch.cat(rows).square().mean()


def _encoder(shape: tuple[int, ...]) -> nn.Module:
    layer = nn.TransformerEncoderLayer(shape[-1], 4, 4 * shape[-1], dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _encoder_ours(model: Any, data: dict[str, Tensor]) -> Any:
    x = mg.from_lengths(data["x"], data["lengths"])
    return model(x).mean(1).square().mean()


def _encoder_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    real = _real(data)
    hidden = model(data["x"], src_key_padding_mask=~real)
    return mean_by_hand(hidden, real).square().mean()


def _bert(shape: tuple[int, ...]) -> nn.Module:
    try:
        transformers = require("transformers", "the benchmark of Bert", "bench")
    except MissingDependencyError as absent:
        raise LeftOutError(str(absent)) from None
    config = transformers.BertConfig(
        hidden_size=shape[-1],
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=4 * shape[-1],
        vocab_size=100,
        max_position_embeddings=max(shape[1], 2),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = transformers.BertModel(config, add_pooling_layer=False)
    return model


def _bert_ours(model: Any, data: dict[str, Tensor]) -> Any:
    x = mg.from_lengths(data["x"], data["lengths"])
    return model(inputs_embeds=x).last_hidden_state.mean(1).square().mean()


def _bert_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    real = _real(data)
    hidden = model(inputs_embeds=data["x"], attention_mask=real.long()).last_hidden_state
    return mean_by_hand(hidden, real).square().mean()


def _linear(shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(shape[-1], shape[-1])


def _pooling_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    return mean_by_hand(model(data["x"]), _real(data)).square().mean()


def _lstm(shape: tuple[int, ...]) -> nn.Module:
    return nn.LSTM(shape[-1], shape[-1], batch_first=True)


def _lstm_ours(model: Any, data: dict[str, Tensor]) -> Any:
    out, _ = model(mg.from_lengths(data["x"], data["lengths"]))
    return out.mean(1).square().mean()


def _lstm_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    packed = nn.utils.rnn.pack_padded_sequence(
        data["x"], data["lengths"], batch_first=True, enforce_sorted=False
    )
    out, _ = nn.utils.rnn.pad_packed_sequence(
        model(packed)[0], batch_first=True, total_length=data["x"].shape[1]
    )
    return mean_by_hand(out, _real(data)).square().mean()


def _holes(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Numbers of which three in ten are missing, zero there, and targets with holes of their own."""
    generator = torch.Generator().manual_seed(1)
    present = torch.rand(shape, generator=generator) < 0.7
    x = torch.randn(shape, generator=generator) * present
    observed = torch.rand((shape[0], 8), generator=generator) < 0.7
    y = torch.randn((shape[0], 8), generator=generator) * observed
    return {"x": x, "present": present, "y": y, "observed": observed}


def _mlp(shape: tuple[int, ...]) -> nn.Module:
    wide = 2 * shape[-1]
    return nn.Sequential(
        nn.Linear(shape[-1], wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 8)
    )


def _mlp_ours(model: Any, data: dict[str, Tensor]) -> Any:
    y: Any = mg.masked(data["y"], data["observed"])
    return F.mse_loss(model(mg.masked(data["x"], data["present"])), y)


def _mlp_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    found = model(torch.where(data["present"], data["x"], 0))
    errors = torch.where(data["observed"], (found - data["y"]).square(), 0)
    return errors.sum() / data["observed"].sum()


def _mlp_alone(model: Any, data: dict[str, Tensor]) -> Any:
    """The columns of the first layer that a sample lacks are deleted."""
    first, *rest = model.children()
    rows = [
        F.linear(x[present], first.weight[:, present], first.bias)
        for x, present in zip(data["x"], data["present"], strict=True)
    ]
    found = nn.Sequential(*rest)(torch.stack(rows))[data["observed"]]
    return (found - data["y"][data["observed"]]).square().mean()


def _images(shape: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    present = torch.rand(shape, generator=generator) < 0.7
    return {"x": torch.randn(shape, generator=generator) * present, "present": present}


def _convolutions(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[1], 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    )


def _convolutions_ours(model: Any, data: dict[str, Tensor]) -> Any:
    return model(mg.masked(data["x"], data["present"])).square().mean()


def _convolutions_by_hand(model: Any, data: dict[str, Tensor]) -> Any:
    return model(torch.where(data["present"], data["x"], 0)).square().mean()


def _convolutions_defined(model: Any, data: dict[str, Tensor]) -> Any:
    """Windows as columns, in which a missing entry is 0; each window has a specified entry."""
    x: Any = data["x"]
    for layer in model.children():
        if isinstance(layer, nn.Conv2d) and layer.bias is not None:
            columns = F.unfold(x, 3, padding=1)
            weight = layer.weight.flatten(1)
            x = (weight @ columns + layer.bias[:, None]).unflatten(2, x.shape[2:])
        else:
            x = layer(x)
    return x.square().mean()


def _encoded_alone(model: Any, data: dict[str, Tensor]) -> Any:
    return _alone(model, data, lambda m, x: m(x).mean(1))


def _bert_alone(model: Any, data: dict[str, Tensor]) -> Any:
    return _alone(model, data, lambda m, x: m(inputs_embeds=x).last_hidden_state.mean(1))


def _lstm_alone(model: Any, data: dict[str, Tensor]) -> Any:
    return _alone(model, data, lambda m, x: m(x)[0].mean(1))


def programs(size: int) -> Iterator[Program]:
    """The programs with batches of about ``size`` sequences; widths stay."""
    encoder = (_encoder, _padded, _encoder_ours, _encoder_by_hand, _encoded_alone)
    bert = (_bert, _padded, _bert_ours, _bert_by_hand, _bert_alone)
    short, long = ENCODERS
    yield Program("two encoder layers", (size, *short), *encoder)
    yield Program("two encoder layers", (max(size // 2, 1), *long), *encoder)
    yield Program("Bert", (size, 64, 128), *bert)
    yield Program("Bert, compiled", (size, 64, 128), *bert, compiled=True)
    for rows in (16 * size, 128 * size):
        yield Program("MLP", (rows, 64), _mlp, _holes, _mlp_ours, _mlp_by_hand, _mlp_alone)
    yield Program(
        "two convolutions", (size, 3, 32, 32), _convolutions, _images, _convolutions_ours,
        _convolutions_by_hand, _convolutions_defined,
    )  # fmt: skip
    yield Program(
        "linear, mean over time", (4 * size, 200, 64), _linear, _padded, _encoder_ours, _pooling_by_hand,
        _encoded_alone,
    )  # fmt: skip
    yield Program("LSTM", (2 * size, 100, 64), _lstm, _padded, _lstm_ours, _lstm_by_hand, _lstm_alone)


def _cases(point: Point) -> Iterator[Case]:
    for program in programs(point.size):
        if point.in_full or not program.compiled:
            yield Case(
                NAME, program.name, FORWARD_AND_BACKWARD, program.shape, 0.7, "float32",
                functools.partial(contest, program),
            )  # fmt: skip


def contest(program: Program, others: dict[str, Step] | None = None) -> Comparison:
    """A program made ready; ``others``: further ways to take the same step, by the names of peers."""
    torch.manual_seed(0)
    model = program.model(program.shape)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    data = program.data(program.shape)
    expected = _expected(program, start, data)

    def contender(step: Step) -> Implementation:
        own = program.model(program.shape)
        own.load_state_dict(start)
        params = list(own.parameters())
        if program.compiled:
            torch._dynamo.reset()
            step = torch.compile(step, backend=BACKEND, fullgraph=True, dynamic=False)

        def forward_and_backward() -> list[Tensor]:
            loss = step(own, data)
            return [loss.detach(), *torch.autograd.grad(loss, params, allow_unused=True)]

        return Implementation(forward_and_backward, _numbers)

    def verify(found: Tensor) -> None:
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)

    return Comparison(
        {
            OURS: lambda: contender(program.ours),
            "by-hand": lambda: contender(program.by_hand),
            **{peer: functools.partial(contender, step) for peer, step in (others or {}).items()},
        },
        verify,
        agree=lambda ours, theirs: torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5),
    )


def _numbers(found: list[Tensor | None]) -> Tensor:
    """The loss and all gradients."""
    return torch.cat([part.reshape(-1) for part in found if part is not None])


def _expected(program: Program, start: dict[str, Tensor], data: dict[str, Tensor]) -> Any:
    model = program.model(program.shape)
    model.load_state_dict(start)
    model.double()
    exact = {name: t.double() if t.is_floating_point() else t for name, t in data.items()}
    loss = program.defined(model, exact)
    return _numbers([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)])


FAMILY = Family(
    NAME,
    "whole models, forward and backward, beside masking written by hand",
    size_is="sequences of a batch",
    cases=_cases,
    sizes=(16,),
    quick_size=4,
    densities=(0.7,),
)
