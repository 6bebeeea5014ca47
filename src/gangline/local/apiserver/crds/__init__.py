"""CustomResourceDefinitions: their validation and the kinds that they add to the registry.

Order: ``validation``, ``definitions``. May import: ``watch``, ``storage``, ``core``, ``machinery``.
"""
