"""Tests of the fine-tuning program; those of the Trainer are in tests/ecosystem."""
