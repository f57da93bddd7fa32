"""How long masked and sparse operations take, beside other ways to do the same: ``make bench``.

A *family* (:mod:`benchmarks.families`) lists *cases*; in each a few *contenders* do the same task. Their
results are checked, then all are timed in turns, in one process. Nothing here prints: the command line does.
"""
