"""Two features of the library at once: every pair, each against loops over samples in plain PyTorch."""
