"""All ranks go on, or all raise: a mistake on one of them must not leave the others waiting.

What every look-up has to tell the other ranks anyway, how many rows are wanted, carries two numbers more: whether
this rank refuses its arguments, and what it is about to do.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from maskgrad.distributed.sharding.ranks import Ranks

__all__ = ["announce", "fingerprint"]

_TEXT_BYTES = 1024
_KINDS: tuple[type[Exception], ...] = (RuntimeError, IndexError, TypeError, ValueError)
"""What is raised on the other ranks; the place of the type is what travels. An unknown type becomes the first."""


def fingerprint(*facts: object) -> int:
    """A number for what a rank is about to do; ranks with different plans have different ones."""
    return zlib.crc32(repr(facts).encode())


def announce(ranks: Ranks, numbers: Tensor, plan: int, refusal: Exception | None, what: str) -> Tensor:
    """Tell each rank its row of ``numbers`` (W, k), int64, and hear theirs; or raise on every rank.

    Args:
        ranks: who takes part.
        numbers: what is to be told; k >= 1 is the same on ranks with the same plan.
        plan: the fingerprint of what follows.
        refusal: why this rank cannot go on.
        what: what to call it in an error.

    Returns:
        (W, k): what each rank has told this one.

    Raises:
        Exception: ``refusal`` where it was found; an error of the same type, naming the rank, elsewhere.
        RuntimeError: the ranks have different plans.
    """
    once = [1] * ranks.size
    code = 0 if refusal is None else _code(refusal)
    head = torch.tensor([code, plan], device=numbers.device).expand(ranks.size, 2)
    # The first message has the same length whatever the ranks are about to do; the rest follows if they agree.
    heard = ranks.exchange(torch.cat([head, numbers[:, :1]], 1), once, once)
    codes, plans = heard[:, 0].tolist(), heard[:, 1].tolist()
    if any(codes):
        _raise_everywhere(ranks, refusal, codes, numbers.device)
    if any(other != plan for other in plans):
        raise RuntimeError(
            f"{what}: the plans of the ranks are {plans}, and have to be one. All ranks look the same tables up in the "
            "same order, all with gradients or all without"
        )
    if numbers.shape[1] == 1:
        return heard[:, 2:]
    return torch.cat([heard[:, 2:], ranks.exchange(numbers[:, 1:].contiguous(), once, once)], 1)


def _code(refusal: Exception) -> int:
    return 1 + next((number for number, kind in enumerate(_KINDS) if type(refusal) is kind), 0)


def _raise_everywhere(
    ranks: Ranks, refusal: Exception | None, codes: list[int], device: torch.device
) -> None:
    text = "" if refusal is None else str(refusal)
    message = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
    sent = torch.tensor(list(message), dtype=torch.uint8, device=device).expand(ranks.size, _TEXT_BYTES)
    heard = ranks.exchange(sent, [1] * ranks.size, [1] * ranks.size)
    if refusal is not None:
        raise refusal
    first = next(rank for rank, code in enumerate(codes) if code)
    told = bytes(heard[first].tolist()).rstrip(b"\0").decode(errors="replace")
    raise _KINDS[codes[first] - 1](f"rank {first} refuses its arguments: {told}")
