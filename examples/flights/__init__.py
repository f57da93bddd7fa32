"""Delays of flights: numbers and targets with holes, tables with sparse gradients, beside other ways to treat them.

Read ``model.py`` first: it is what you would write yourself with maskgrad. ``data.py`` joins and codes the tables,
``training.py`` trains and resumes, ``rivals.py`` has what the model is compared with, ``report.py`` writes the report.
"""
