"""Server-side printing: the ``meta.k8s.io/v1`` Table that ``kubectl get`` shows.

Order: ``printer`` (columns, ages, shared cells), ``workloads`` (printers by kind), ``table``
(rendering, custom columns, printers of other kinds).
"""
