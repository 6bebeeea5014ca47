"""Structural schemas, compiled once into closures that prune, default and validate objects.

Order: ``nodes`` (walking a schema, field paths), ``value_rules`` (bounds, patterns, formats),
``structural`` (the compilers). ``builtin_schemas``: the schemas of Kubernetes' built-in kinds that
have no struct in this project.
"""
