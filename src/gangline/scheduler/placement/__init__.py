"""Placement: finds nodes for the pods of one gang, tentatively and with rollback.

`scratch` holds the tentative allocation, `gang` places a gang in it; `colocation` is tried where it
can do better than packing. Imports `queueing` and below.
"""
