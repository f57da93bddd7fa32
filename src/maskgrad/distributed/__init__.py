"""Training on several processes: gradients, losses and statistics equal to those of one process on the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskgrad.distributed.all_reduction import AllReduce, all_reduce, all_reduce_gradients
from maskgrad.distributed.batch_normalization import SyncBatchNorm
from maskgrad.distributed.checks import check_optimizer, check_parameters
from maskgrad.distributed.global_sums import global_losses, sampler_mask
from maskgrad.distributed.preparation import prepare
from maskgrad.distributed.reductions import count, mean, std, sum, var
from maskgrad.instead import missing_attribute

if TYPE_CHECKING:
    from maskgrad.distributed.data_parallel import DataParallel

__all__ = [
    "AllReduce",
    "DataParallel",
    "SyncBatchNorm",
    "all_reduce",
    "all_reduce_gradients",
    "check_optimizer",
    "check_parameters",
    "count",
    "global_losses",
    "mean",
    "prepare",
    "sampler_mask",
    "std",
    "sum",
    "var",
]


def __getattr__(name: str) -> object:
    # Its base class is missing in builds without torch.distributed.
    if name == "DataParallel":
        from maskgrad.distributed.data_parallel import DataParallel

        return DataParallel
    raise missing_attribute(__name__, name)
