"""MaskedTensors beside other people's packages, one file for each: `make test-ecosystem`."""

from tests.ecosystem.torchvision_operators import declare_operators

# Here, and not in conftest.py: the processes of a test import its file, and no conftest.py.
declare_operators()
