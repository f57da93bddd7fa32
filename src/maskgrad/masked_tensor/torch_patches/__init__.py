"""Code that maskgrad replaces, extends or registers inside PyTorch; ``table.py`` lists replacements."""
