"""The MovieLens demonstration: ratings with holes, learnt by two models.

Read ``factorization.py`` and ``autoencoder.py`` first: they are what you would write yourself with maskgrad.
The other files load and split the ratings, keep the records, measure and draw.
"""
