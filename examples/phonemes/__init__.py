"""From spelling to sound: words of different lengths, learnt by a Transformer without padding.

Read ``model.py``, ``jagged.py`` and ``padded.py`` first: an ordinary model, and the two ways to feed it.
The other files load the dictionary, train both ways in turns, measure and draw.
"""
