"""A Hugging Face encoder learns where words are stressed, in micro-batches with few labels and with many.

Read ``model.py``, ``loop.py`` and ``trainer.py``: the model, a loop of one's own, and the Trainer.
"""
