"""The protocol between agents, workers and the master of a job, and its encryption.

``messages`` has the requests and replies, ``envelope`` their framing with a request number,
``encryption`` the authenticated encryption of a connection. ``server`` is the master's end,
``client`` and ``blocking_client`` are the ends of agents and of training scripts.
"""
