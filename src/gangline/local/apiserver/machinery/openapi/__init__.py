"""OpenAPI documents of the served kinds, versions 2 and 3.

Order: ``documents`` (both versions as JSON), ``protobuf`` (version 2 in the encoding that kubectl
requests). May import: ``machinery.schema``.
"""
