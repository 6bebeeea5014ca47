"""Which cluster to use and with which credentials: kubeconfig files and service accounts.

Order: ``config``, ``kubeconfig``, ``credentials``. Imports ``kube.errors``.
"""
