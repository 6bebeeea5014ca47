"""Hang detection: no progress for a timeout, and the ranks for which the others wait.

``stacks`` polls a worker group and collects stacks and flight records, ``py_spy`` reads the stacks
of a process that does not answer, ``detector`` decides. ``detector`` is pure: higher layers use its
values in messages.
"""
