"""What all kinds share: struct base, metadata, conditions, label selectors, resource addresses.

Imports only ``api.names``.
"""
