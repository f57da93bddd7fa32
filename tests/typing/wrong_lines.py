"""Lines that type checkers must report, each of them; nothing runs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

__all__ = ["wrong"]


def wrong(x: mg.MaskedTensor, data: Tensor, model: nn.Module) -> None:
    x.nosuch  # wrong
    (x * 2).exp().nosuch  # wrong
    x.sort().nosuch  # wrong
    x.mean().mask  # wrong: a plain number
    x.num_specified(1)  # wrong
    x.filled("0")  # wrong
    torch.softmax(x, -1).filled(0.0)  # wrong: declared by PyTorch; the page has what to write
    F.gelu(x).mask  # wrong: the same
    name: str = x[0]  # wrong
    plain: mg.MaskedTensor = data  # wrong
    mg.masked([1.0, 2.0], x.mask)  # wrong
    mg.masked(data, "mask")  # wrong
    mg.from_sequences([data], layout="jagged")  # wrong
    mg.functional.sum(data, 0, True)  # wrong: keepdim by name
    mg.functional.softmax(data)  # wrong: dim is required
    mg.optim.AdamW(model.parameters(), unspecified="none")  # wrong
    mg.GradientAccumulator(model).backwards(x)  # wrong
    mg.doctor.examine(model)  # wrong
    assert name, plain
