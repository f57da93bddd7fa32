"""MaskedTensors beside other people's packages, one file for each: `make test-ecosystem`."""
