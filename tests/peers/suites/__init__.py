"""One module for each peer, with its ``SUITE``."""
