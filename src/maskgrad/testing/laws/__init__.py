"""The three laws as a suite for any type of masked tensors: ``python -m maskgrad.testing.laws module:factory``."""

from maskgrad.testing.laws.adapter import Adapter

__all__ = ["Adapter"]
