"""Placement: finds nodes for the pods of one gang, tentatively and with rollback.

`scratch` holds the tentative allocation, `gang` places a gang in it; `backtracking` and
`colocation` are tried where they can do better than packing. Imports `queueing` and below.
"""
