"""The scheduler on virtual time: the same cycle as on a cluster, over a trace of jobs.

`trace` reads or `generate` makes the jobs, `cluster` describes nodes and queues, `engine` runs
virtual time, `report` computes the metrics and prints them.
"""
