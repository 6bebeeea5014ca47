"""The rendezvous of a job, as the master runs it: a state machine without clock or I/O.

From high to low: ``rendezvous`` holds the rules, ``rank_order`` chooses and orders the members,
``rank_index`` finds nodes by rank, ``messages`` explains waiting and refusal, ``state`` is what the
master persists. It imports only the message types of ``elastic.protocol``.
"""
