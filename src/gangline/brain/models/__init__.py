"""Models that are fitted to facts: histograms of usage, throughput by size, noise of gradients.

Pure: numpy, no I/O, no clock; random draws use a fixed seed. Imports ``facts``,
and ``gangline.sizing`` for priors.
"""
