"""The controllers of kube-controller-manager for the embedded cluster.

Each controller has pure functions that decide, and a loop that watches, calls them and writes.
Large ones have a folder with a pure ``plan``, and a ``controller``. `manager` runs all controllers
on one set of informers. A real Kubernetes cluster does not need this package.
"""
