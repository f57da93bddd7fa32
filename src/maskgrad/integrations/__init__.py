"""Integrations of other packages: adapted to MaskedTensors on request, and trainers with one denominator per step.

Only :func:`install` imports or changes a package; mixins precede its classes, and the rest uses its objects.
"""

from maskgrad.integrations.accelerate import AcceleratorAccumulator
from maskgrad.integrations.fabric import FabricAccumulator
from maskgrad.integrations.ignite import ignite_training_step
from maskgrad.integrations.installing import install, uninstall
from maskgrad.integrations.integration import Integration
from maskgrad.integrations.lightning import LightningMixin
from maskgrad.integrations.skorch import SkorchMixin
from maskgrad.integrations.transformers import TokenCollator, TrainerMixin

__all__ = [
    "AcceleratorAccumulator",
    "FabricAccumulator",
    "Integration",
    "LightningMixin",
    "SkorchMixin",
    "TokenCollator",
    "TrainerMixin",
    "ignite_training_step",
    "install",
    "uninstall",
]
