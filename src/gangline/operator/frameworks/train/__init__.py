"""TrainJob: roles of a runtime, in phases.

A JobSet is upstream's intermediate object. Here pods are made directly, with the names, labels and
host names that a JobSet gives them.
"""
