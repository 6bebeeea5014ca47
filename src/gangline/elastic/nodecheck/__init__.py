"""Node check: before training, find faulty and slow nodes without blaming a healthy one.

From high to low: ``run`` takes part in a check on one node, in forks of ``interpreters``;
``coordinator`` conducts the checks of a job, in the master or in this process. ``group_testing``
chooses the groups and the verdict, ``result`` holds the values and finds slow nodes. ``worker``
runs in the forks.
"""
