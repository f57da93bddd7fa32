"""Tests of the MovieLens program."""
