"""The same meaning on stored values: rules whose cost follows the number of specified entries, not the shape.

A rule here receives :class:`~maskgrad.semantics.stored.entries.StoredEntries` for each masked argument of a sparse
layout. The values are plain tensors without holes, so PyTorch's own functions apply to them; what is left to do is to
bring the right entries together. An operation without such a rule is refused, naming the explicit conversion.
"""
