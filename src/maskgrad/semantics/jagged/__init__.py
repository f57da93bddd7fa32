"""Operations on sequences of different lengths, computed on the stored rows where possible.

- :mod:`rows`: aligning operands row by row; elementwise operations.
- :mod:`features`: operations on each row, reductions and softmax along the ragged dimension.
- :mod:`views`, :mod:`indexing`: rearrangements, joins and parts.
- :mod:`losses`, :mod:`attention`, :mod:`over_time`.
- :mod:`registry`: the rule of each operation, and the operations that use the padded form.
"""
