"""Sizes of all elastic jobs together: who gets spare devices, who gives some back, at what price.

``jobs`` (what is known of jobs, nodes and gangs), ``shares`` (what the queues entitle jobs to),
``placement`` (whether pods fit on nodes), ``solve`` (the exact division of devices), ``allocate``,
``give_back``, ``prices``. Pure. Imports ``advisers`` and ``facts``; the guard decides afterwards
whether a size is applied.
"""
