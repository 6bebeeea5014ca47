"""The protocol between agents, workers and the master of a job, and its secure channel.

``messages`` has the requests and replies, ``wire`` their framing with a request number and the
errors, ``channel`` the TLS 1.3 of a connection. ``server`` is the master's end, ``client``
has those of agents and of training scripts.
"""
