"""Closed forms: what many steps with gradient zero do to a row, without taking them one by one.

A step with gradient zero maps parameter and state of an entry to new ones, by the same map for every entry. Two
families of maps can be composed ahead of time:

===============  ===============================================================  ===============================
``linear.py``    parameter and buffer by a 2x2 matrix, other states by a factor   SGD, ASGD, Lion; without weight
                                                                                  decay Adagrad, RMSprop, Adadelta
``moments.py``   a decaying first moment over a root, weight decay decoupled      Adam, AdamW, NAdam, RAdam, AMSGrad
===============  ===============================================================  ===============================

A *table* has one column for each moment at which a row may have fallen idle, numbered by the idle steps recorded
before it, and column s holds the composition of all steps since. Recording a step costs work in proportion to the
columns that still change (16,384 numbers at most, see ``rows.py``), never to the parameter; catching a row up
costs one lookup, however long it was idle.

Everything else is *replayed*, step by step, by the rule itself: a coupled weight decay under a square, mostly.
"""

from __future__ import annotations
