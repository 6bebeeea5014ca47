"""Connections of clients to the cluster's HTTP servers: bounds in number and in time.

A connection counts as unauthenticated from its acceptance to its first request with valid
credentials. Unauthenticated connections are bounded in total and per peer. A new connection beyond
a bound is accepted, and the oldest one of the peer with the most is closed instead: a client that
authenticates at once is never the oldest, whatever others hold open.
"""
