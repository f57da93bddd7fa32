"""The doctor on models of other people: every architecture of transformers, and models of other packages."""
