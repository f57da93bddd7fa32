"""Ways to train: compiled, accumulated, by autograd.grad, distributed, with a module that several callers share."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import Script, classes, ids, lasting, program


def text(**more):
    real = lasting()
    return {"ids": ids(real), "mask": real, "y": classes(), **more}, {"ids": real}


def reader(wrong, **options):
    """Texts read by a table and pooled, over padding if wrong."""
    (batch, real), table, head = text(), nn.Embedding(20, 8), nn.Linear(8, 5)

    def forward(ids, mask):
        hidden = table(ids).tanh()
        if wrong:
            return head(hidden.mean(1))  # leak
        return head((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

    return Script(batch, forward, real=real, **options)


def compiled(module):
    return torch.compile(module, backend="eager")


def replicated(module):
    """As torchrun does with one process."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(module)


def backward_of_two_parts(step, batch):
    for part in (slice(0, 2), slice(2, 4)):
        (step({key: held[part] for key, held in batch.items()}) / 2).backward()


def gradient_by_hand(step, batch):
    params = list(step.__self__.model.parameters())
    for param, gradient in zip(params, torch.autograd.grad(step(batch), params), strict=True):
        param.grad = gradient


def under_autocast(step, batch):
    with torch.autocast("cpu", torch.bfloat16):
        loss = step(batch)
    loss.backward()


def clipped(step, batch):
    step(batch).backward()
    nn.utils.clip_grad_norm_(step.__self__.model.parameters(), 1.0)


def validated_before(step, batch):
    """On another batch, without gradients."""
    with torch.no_grad():
        step(text()[0])
    step(batch).backward()


def compiled_step(step, batch):
    torch.compile(step, backend="eager")(batch).backward()


def variants():
    ways = {
        "compiled_model": {"wrap": compiled},
        "compiled_step": {"train": compiled_step},
        "compiled_step_of_a_compiled_model": {"wrap": compiled, "train": compiled_step},
        "accumulated": {"train": backward_of_two_parts},
        "gradient_by_hand": {"train": gradient_by_hand},
        "under_autocast": {"train": under_autocast},
        "clipped": {"train": clipped},
        "validated_before": {"train": validated_before},
        "from_a_loader": {"loader": True},
        "distributed_of_one_rank": {"wrap": replicated},
    }
    for name, options in ways.items():

        def make(wrong, options=options):
            return reader(wrong, **options)

        make.__name__ = name
        yield make


for _make in variants():
    program(source=reader)(_make)


@program()
def one_caller_of_a_shared_module_forgets_the_mask(wrong):
    batch, real = text(other=ids(lasting(4, 6, 3, 5)))
    table, head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(16, 5)

    def pooled(hidden, mask=None):
        if mask is None:
            return hidden.mean(1)  # leak
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def forward(ids, mask, other):
        first = pooled(table(ids), mask)
        second = pooled(table(other)) if wrong else pooled(table(other), other != 0)
        return head(torch.cat([first, second], -1))

    return Script(batch, forward, real=real | {"other": lasting(4, 6, 3, 5)})


@program()
def losses_of_tokens_averaged(wrong):
    (batch, real), table, head = text(), nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(ids, mask):
        return head(table(ids))

    def loss(out, batch):
        losses = F.cross_entropy(out.transpose(1, 2), batch["ids"], reduction="none")
        if wrong:
            return losses.mean()  # leak
        return (losses * batch["mask"]).sum() / batch["mask"].sum()

    return Script(batch, forward, loss, real, loader=True)
