"""How viewers prove who they are: one module for each mode, and sessions.

Each mode turns a request into a ``Session``: the identity with which requests are sent, a name, and
the token that forms must bring along. Tokens of viewers stay in the memory of the server.
"""
