"""Benchmarks: figures relative to a baseline that is measured in the same run (`make bench`).

Absolute times depend on the machine; ratios to a baseline of the same minute hardly do. Each section yields figures
(figures.py), systems are measured alternately, operation by operation (timing.py), and the report lists missed targets
first (report.py).
"""
