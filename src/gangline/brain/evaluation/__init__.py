"""Evaluation: the cycle in which facts become advice, and advice becomes actions.

``views`` (what advisers see), ``advisers`` (all of them, in turn), ``job_state`` (what the guard
sees) are pure. ``history`` reads the store and goes on without it, ``trials`` begins and judges
actions, ``evaluator`` runs the cycle.
"""
