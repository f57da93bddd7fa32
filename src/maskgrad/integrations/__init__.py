"""Trainers of other libraries, with one denominator for all micro-batches of a step, around their own loops.

Nothing here imports these libraries: mixins are put before their classes, and the rest takes their objects.
"""

from maskgrad.integrations.accelerated import AcceleratorAccumulator
from maskgrad.integrations.fabric import FabricAccumulator
from maskgrad.integrations.hugging_face import TrainerMixin
from maskgrad.integrations.ignite_engine import ignite_training_step
from maskgrad.integrations.lightning_module import LightningMixin
from maskgrad.integrations.skorch_net import SkorchMixin
from maskgrad.integrations.token_collation import TokenCollator

__all__ = [
    "AcceleratorAccumulator",
    "FabricAccumulator",
    "LightningMixin",
    "SkorchMixin",
    "TokenCollator",
    "TrainerMixin",
    "ignite_training_step",
]
