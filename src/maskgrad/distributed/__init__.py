"""Training on several processes: gradients, losses and statistics equal to those of one process on the whole batch."""

from maskgrad.distributed.all_reduction import all_reduce, all_reduce_gradients
from maskgrad.distributed.batch_normalization import SyncBatchNorm
from maskgrad.distributed.checks import check_optimizer, check_parameters
from maskgrad.distributed.data_parallel import DataParallel
from maskgrad.distributed.global_sums import global_losses, sampler_mask
from maskgrad.distributed.preparation import prepare
from maskgrad.distributed.reductions import count, mean, sum
from maskgrad.instead import missing_attribute

__all__ = [
    "DataParallel", "SyncBatchNorm", "all_reduce", "all_reduce_gradients", "check_optimizer",
    "check_parameters", "count", "global_losses", "mean", "prepare", "sampler_mask", "sum",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
