"""The HTTP API of the Brain: history and advice for people and tools, facts of jobs elsewhere.

``access`` (tokens and rights, by reviews of the API server), ``routes`` (the requests), ``app``
(address and TLS). Jobs need none of it.
"""
