"""Node check: before training, find faulty and slow nodes without blaming a healthy one.

From high to low: ``run`` takes part in a check on one node, ``workers`` runs its processes in forks
of ``interpreters``, ``coordinator`` conducts the checks of a job, in the master or in
this process. ``group_testing`` chooses the groups and the verdict, ``speed`` finds slow nodes,
``result`` holds the values. ``worker`` runs in the forks and speaks ``worker_messages``.
"""
