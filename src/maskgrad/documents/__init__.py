"""Packed rows, which hold several documents: as sequences, aggregated, and in attention."""

from maskgrad.documents.aggregation import aggregate
from maskgrad.documents.packing import pack_documents, unpack_documents

__all__ = ["aggregate", "pack_documents", "unpack_documents"]
