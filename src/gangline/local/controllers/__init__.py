"""The controllers of kube-controller-manager for the embedded cluster.

Each controller has a folder with a pure ``plan`` that decides, and a ``controller`` that watches,
calls it and writes. `manager` runs all controllers on one set of informers. A real Kubernetes
cluster does not need this package.
"""
