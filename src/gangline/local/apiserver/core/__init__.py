"""What every part of the server shares: kinds, requests, errors, encodings. No state, no I/O.

Order: ``errors`` (StatusError), ``registry`` (ServedKind), ``builtin_kinds``, ``request``
(ApiRequest), ``negotiation`` (media types, bodies), ``metadata`` (fields written by the server),
``conversion`` (versions of a kind), ``prepare`` (steps before an object is stored). May import:
``machinery``.
"""
