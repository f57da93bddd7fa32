"""Tests of the phonemes program."""
