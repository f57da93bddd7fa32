"""What operations mean on sequences of different lengths: on the rows that there are, as far as that is possible.

- :mod:`rows`: operands side by side, row by row; elementwise operations.
- :mod:`features`: operations that leave every row to itself.
- :mod:`sequences`: reductions and softmax along the ragged dimension.
- :mod:`views`, :mod:`indexing`: rearrangements, joins and parts.
- :mod:`losses`, :mod:`attention`, :mod:`recurrence`.
- :mod:`registry`: which operation does which, and what goes through the padded form by rule.
"""
