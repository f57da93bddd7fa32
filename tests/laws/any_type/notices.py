"""PyTorch's warnings about its own samples that do not concern the laws, each with its reason."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

__all__ = ["IGNORED", "NOTICES", "without_notices"]

#: The beginning of the message (a regular expression), and why it may be ignored here.
NOTICES = {
    r"Using padding='same' with even kernel": "samples of convolutions",
    r"masked_scatter_ received a mask with dtype torch\.uint8": "a sample of masked_scatter",
    r"Using torch\.cross without specifying the dim": "samples of cross",
    r"Sparse CSR tensor support is in beta": "samples of operations on sparse tensors",
    r"torch\.qr is deprecated": "used to make a sample",
    r"`nn\.functional\.upsample_\w+` is deprecated": "deprecated, but in the database",
    r"ComplexHalf support is experimental": "samples of chalf",
    r"dropout2d: Received a 3D input": "a sample of dropout2d",
    r"reduction: 'mean' divides the total loss": "a sample of kl_div",
    r".*degrees of freedom is <= 0": "samples of var and std, whole or deleted, with too few entries",
    r"An output with one or more elements was resized": "samples with out=",
    r"Casting complex values to real discards": "conversions of complex samples",
    r"The use of `x\.T` on tensors of dimension other than 2": "samples of T",
    r"linear_cross_entropy: ``options`` ignored": "samples of linear_cross_entropy that torch does not take apart",
    r"index_reduce\(\) is in beta": "torch's own function, called by the tests",
    r"The reduce argument of torch\.scatter with Tensor src": "samples of scatter",
    r"Using a target size": "samples of losses whose operands broadcast",
}

#: The same as pytest filters.
IGNORED = tuple(f"ignore:{message.replace(':', '.')}:UserWarning" for message in NOTICES)


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Ignore only these warnings."""
    with warnings.catch_warnings():
        for message in NOTICES:
            warnings.filterwarnings("ignore", message, UserWarning)
        yield
