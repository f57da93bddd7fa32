"""What masks and sparse gradients change, measured: one screen (``screen.py``), or five parts at length.

One file a part: ``missing.py`` (ratings with holes), ``nan.py``, ``lengths.py`` (sequences), ``table.py`` (a million
rows) and ``leak.py`` (the doctor reads ``leaking.py``). Each gives a :class:`~examples.tour.part.Part`.
"""
