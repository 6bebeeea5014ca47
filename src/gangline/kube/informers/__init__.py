"""Local copies of objects, kept current by list and watch.

Order: ``shared_informers``, ``informer``, ``indexer``. Imports ``kube.client``.
"""
