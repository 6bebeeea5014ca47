"""The agent: one process on each node that starts the workers, detects failures and restarts them.

``agent`` is the loop: get a world, run its workers, handle what ends them. From high to low:
``local_workers`` is the node's present attempt, ``membership`` and ``rendezvous`` provide worlds,
``hang`` detects hangs, ``workers`` starts and stops one attempt, ``spares`` holds warm
interpreters, ``process`` and ``logs`` start processes and place their output. ``restart_policy``
decides what follows a failure.
"""
