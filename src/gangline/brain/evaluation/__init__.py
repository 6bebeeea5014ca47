"""Evaluation: the cycle in which facts become advice, and advice becomes actions.

``advisers`` has what advisers see, and all of them in turn, also for jobs not submitted yet.
``history`` reads the store and goes on without it, ``trials`` begins and judges actions,
``cluster_facts`` is about all jobs, and asks the scheduler, ``evaluator`` runs the cycle.
"""
