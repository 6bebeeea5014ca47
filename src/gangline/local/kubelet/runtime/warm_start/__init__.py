"""Warm starts: a container's Python is forked from an interpreter that has imported its libraries.

``command`` decides whether a container may start so, ``server`` runs one such interpreter,
``pool`` keeps one for each environment. Doubtful cases start by commands, as all containers did.
"""
