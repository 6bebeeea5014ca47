"""The scheduler on virtual time: the same cycle as on a cluster, over a trace of jobs.

`trace` reads or generates jobs and clusters, `engine` runs virtual time, `report` computes the
metrics and prints them.
"""
