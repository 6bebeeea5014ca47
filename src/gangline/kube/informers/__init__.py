"""Local copies of objects, kept current by list and watch.

Order: ``informer``, ``indexer``. Imports ``kube.client``.
"""
