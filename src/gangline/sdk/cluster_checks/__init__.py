"""Checks of a cluster for ``gangline doctor``: ``run`` asks the cluster, ``checks`` judges."""
