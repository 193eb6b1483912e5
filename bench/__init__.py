"""Figures of the store beside a floor measured in the same run: `make bench`.

Absolute times move with the machine; ratios to the floor of the same minute do not. Each section yields
figures (figures.py), the systems take turns operation by operation (timing.py), and the report puts
what falls short first (report.py).
"""
