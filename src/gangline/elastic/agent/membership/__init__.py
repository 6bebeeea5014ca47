"""Membership of a job of several nodes: worlds from the master, restarts in place agreed upon by
the agents.

From high to low: ``membership`` is the rendezvous handler; ``partition`` detects a network
partition, ``hang_diagnosis`` gathers stacks of all nodes, ``rank_exits`` finds ranks that have
ended, ``restart_consensus`` agrees on the next attempt, ``peers`` transports messages between
agents, ``master_messages`` builds the messages to the master, ``preload_list`` shares the modules
that spare interpreters import. Only launchers of several nodes import this package: it costs import
time.
"""
