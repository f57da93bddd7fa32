"""Code that maskgrad replaces, completes or registers inside PyTorch; ``table.py`` lists what is replaced."""
