"""On PyTorch/XLA: results, one compilation for all masks, nothing copied to the host. `make test-xla` runs them."""
