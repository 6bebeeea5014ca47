"""Random input for everything that parses a client's bytes.

``targets`` has one function for each parser, with the errors that it may raise. ``mutations`` makes
new inputs from the corpus in ``tests/security/corpus``. ``python -m security.fuzz`` runs them.
"""
