"""One small program for each operation, and what becomes of it when it is compiled, exported or vectorised."""
