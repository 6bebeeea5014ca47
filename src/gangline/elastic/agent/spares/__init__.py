"""Warm spare interpreters, which make a restart cheap: they have imported what the script needs.

``pool`` keeps one spare for each worker, ``interpreter`` is one spare. ``hook`` is no package: the
folder is put on ``PYTHONPATH`` of workers, so that its ``sitecustomize`` runs in them; nothing else
may be placed there.
"""
