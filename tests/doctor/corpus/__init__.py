"""Programs with a mistake, each with its correction; see ``tests/doctor/pairs.py``."""

from tests.doctor.corpus import (  # each adds its pairs
    attention,  # noqa: F401
    bags,  # noqa: F401
    batches,  # noqa: F401
    causal_masks,  # noqa: F401
    comparisons,  # noqa: F401
    documents,  # noqa: F401
    future,  # noqa: F401
    lengths,  # noqa: F401
    losses,  # noqa: F401
    normalisations,  # noqa: F401
    packs,  # noqa: F401
    pooling,  # noqa: F401
    rewards,  # noqa: F401
    sequences,  # noqa: F401
)
