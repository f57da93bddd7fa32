"""Integrations of other packages: adapted to MaskedTensors on request, and trainers with one denominator per step.

Only :func:`install` imports or changes a package; mixins precede its classes, and the rest uses its objects.
"""

from maskgrad.instead import missing_attribute
from maskgrad.integrations.installing import install, uninstall
from maskgrad.integrations.integration import Integration
from maskgrad.integrations.lightning import LightningMixin
from maskgrad.integrations.transformers import TokenCollator, TrainerMixin

__all__ = ["Integration", "LightningMixin", "TokenCollator", "TrainerMixin", "install", "uninstall"]


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
