"""Everything that maskgrad replaces or registers inside PyTorch; ``table.py`` lists it."""
