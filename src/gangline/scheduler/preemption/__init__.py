"""Preemption: frees resources for a gang, and protects what was freed or promised.

`preempt` chooses victims within a queue (priority) and between queues (`reclaim`), `gang_search`
spares those that are not needed. `reservations` and `backfill` say who may use reserved nodes
meanwhile. Imports `placement` and below.
"""
