"""The corpus "scripts": small training programs in usual shapes, each wrong and right; see ``script.py``."""

from tests.doctor.scripts import (  # each adds its programs
    channels_first,  # noqa: F401
    encoder_decoder,  # noqa: F401
    images,  # noqa: F401
    losses,  # noqa: F401
    masks,  # noqa: F401
    packed,  # noqa: F401
    time_first,  # noqa: F401
    training,  # noqa: F401
)
