"""Tests of the flights program, on few made-up flights."""
