"""The workers of one attempt on one node: environment, start, end, and the causes of failures.

From high to low: ``usage`` reads progress and resource usage of a group, ``worker_group`` starts
and stops the processes, ``environment`` computes their variables, ``failure_diagnosis`` classifies
an exit. The package may import ``spares``, ``process``, ``logs``, ``world`` and ``settings``, but
not ``hang`` or ``membership``.
"""
