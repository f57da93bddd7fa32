"""Which samples of a DistributedSampler are its own, and which only fill up the last round."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Sampler

__all__ = ["sampler_mask"]


def sampler_mask(sampler: Sampler[int]) -> Tensor:
    r"""Which of this rank's samples count: not those that the sampler repeats so that all ranks have equally many.

    .. math:: m_k = (k W + r < N)

    for the k-th sample of rank r of W, of a dataset of N.

    Args:
        sampler: a ``torch.utils.data.DistributedSampler``.

    Returns:
        Boolean tensor (``len(sampler)``,), in the order in which the sampler gives indices, in every epoch. All True
        with ``drop_last=True``. Over all ranks, as many are True as the dataset has samples. Gradient: none.

    Raises:
        TypeError: ``sampler`` is something else.

    Dense equivalent: none; repeated samples count twice.

    Example:
        >>> sampler = torch.utils.data.DistributedSampler(range(5), num_replicas=2, rank=1)
        >>> len(sampler), mg.distributed.sampler_mask(sampler)
        (3, tensor([ True,  True, False]))

    Source: ``torch.utils.data.DistributedSampler``, which pads with its first indices.
    """
    names = ("dataset", "num_replicas", "rank", "num_samples", "drop_last")
    if not all(hasattr(sampler, name) for name in names):
        raise TypeError(
            f"sampler must be a torch.utils.data.DistributedSampler, found {type(sampler).__name__}"
        )
    number, ranks, rank = sampler.num_samples, sampler.num_replicas, sampler.rank  # type: ignore[attr-defined]
    counted: Tensor = torch.arange(number) * ranks + rank < len(sampler.dataset)  # type: ignore[attr-defined]
    return counted
