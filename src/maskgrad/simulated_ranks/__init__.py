"""Several ranks of a training step, simulated in one process: is their gradient that of one rank?"""

import torch

from maskgrad.errors import ExaminationError

if not torch.distributed.is_available():
    raise ExaminationError("ranks: this PyTorch has no torch.distributed; install a build that has")

from maskgrad.doctor.examination import EXPERIMENTS
from maskgrad.simulated_ranks.experiment import across_ranks, in_scripts
from maskgrad.simulated_ranks.groups import world_of_one

__all__ = ["across_ranks", "in_scripts", "world_of_one"]

EXPERIMENTS["ranks"] = lambda case: across_ranks(case, case.ranks)
