"""PyTorch's own database of operations × the three laws: the tests that decide what "supported" means."""
