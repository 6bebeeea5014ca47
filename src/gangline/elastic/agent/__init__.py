"""The agent: one process on each node that starts the workers, detects failures and restarts them.

``agent`` is the loop: get a world, run its workers, handle what ends them; ``failures`` decides
what follows. From high to low: ``local_workers`` is the node's present attempt, ``membership`` and
``rendezvous`` provide worlds, ``hang_stacks`` and ``hang_detector`` detect hangs, ``worker_group``
starts and stops one attempt, ``spare_pool`` and ``spare_interpreter`` hold warm interpreters,
``process`` and ``logs`` start processes and place their output.
"""
