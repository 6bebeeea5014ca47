"""Evaluation: the cycle in which facts become advice, and advice becomes actions.

``advisers`` (what advisers see, and all of them in turn) is pure.
``history`` reads the store and goes on without it, ``trials`` begins and judges actions,
``capacity`` asks the scheduler, ``evaluator`` runs the cycle, ``manifest_advice`` answers for jobs
not submitted yet.
"""
