"""Packed rows, which hold several documents: as sequences, aggregated, and in attention."""

from maskgrad.documents.aggregation import aggregate
from maskgrad.documents.blocks import block_mask
from maskgrad.documents.flex_attention import PATCH as _PATCH  # noqa: F401  (a row of the table of patches)
from maskgrad.documents.packing import pack_documents, unpack_documents

__all__ = ["aggregate", "block_mask", "pack_documents", "unpack_documents"]
