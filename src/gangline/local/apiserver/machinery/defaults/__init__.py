"""Default values of built-in kinds, set in place and never over a given value.

Order: ``pods`` (pod specs, containers, QoS class), ``builtin`` (the entry points and all other
kinds).
"""
