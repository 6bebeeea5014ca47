"""Server-side printing: the ``meta.k8s.io/v1`` Table that ``kubectl get`` shows.

Order: ``printer`` (columns, ages, shared cells), ``pods``, ``cells`` (other built-in kinds),
``table`` (rendering, custom columns).
"""
