"""What every part of the server shares: kinds, requests, errors, encodings. No state.

Order: ``errors`` (StatusError), ``registry`` (ServedKind), ``request`` (ApiRequest),
``negotiation`` (media types, bodies), ``conversion`` (versions of a kind), ``prepare`` (steps
before an object is stored). May import: ``machinery``.
"""
