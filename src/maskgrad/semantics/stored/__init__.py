"""Rules for stored values, whose cost depends on the number of specified entries, not on the shape.

A rule here receives :class:`~maskgrad.semantics.stored.entries.StoredEntries` for each masked argument of a sparse
layout. The values are plain tensors without holes, so PyTorch's own functions apply to them; rules only bring the
right entries together. Operations without such a rule raise an error that names the explicit conversion.
"""
