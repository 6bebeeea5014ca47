"""The admission webhook: validates jobs and writes their defaults before they are stored.

``review`` and ``defaults`` compute answers, ``server`` serves them; ``certificate``, ``rotation``,
``secret``, ``configuration`` and ``registration`` keep certificates and webhook configurations
current, driven by ``certificate_controller``. ``component`` assembles the parts. Imports ``model``.
"""
