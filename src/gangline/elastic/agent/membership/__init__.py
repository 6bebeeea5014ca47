"""Membership of a job of several nodes: worlds from the master, restarts agreed upon by agents.

From high to low: ``membership`` is the rendezvous handler, ``partition`` detects a network
partition, ``master_messages`` talks to the master, ``restart_consensus`` to the agents of the other
nodes. Only launchers of several nodes import this package: it costs import time.
"""
