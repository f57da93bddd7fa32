"""One denominator in other people's trainers: a few lines for each, around their own loops.

Nothing here imports their packages: mixins stand before their classes, and the rest is given their objects.
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
