"""How fast it is on this machine: the command `pantheon bench`, and the tools of benchmarks/compare.py.

Rank 5: a face. engines.py is the side that is measured, workers.py asks it, measure.py says what, report.py and plot.py
show the figures.
"""
