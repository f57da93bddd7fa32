"""The three laws as a suite for any type of masked tensors: ``python -m tests.laws module:factory``."""

from tests.laws.any_type.adapter import Adapter

__all__ = ["Adapter"]
