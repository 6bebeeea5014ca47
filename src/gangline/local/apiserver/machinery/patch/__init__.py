"""JSON patch, merge patch and strategic merge patch, as pure functions on decoded JSON.

Order: ``json_patch`` (RFC 6902, RFC 7396, ``PatchError``), ``strategic`` (lists merged by key). A
patch never changes its arguments: a failed write leaves the stored object as it was. May import:
``machinery.schema``.
"""
