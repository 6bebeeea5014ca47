"""Preemption: frees resources for a gang, and protects what was freed or promised.

`preempt` chooses victims within a queue (priority) and between queues (reclaim): `victims` are the
candidates, `rights` the limits, `gang_search` finds the cheapest set. `save_first` delays evictions
until gangs have saved, `reservations` say which gang may use reserved nodes meanwhile. Imports
`placement` and below.
"""
