"""The controllers of kube-controller-manager for the embedded cluster.

Each controller has a pure module that decides, and a loop that watches, calls it and writes.
`manager`
runs all loops on one set of informers. A real Kubernetes cluster does not need this package.
"""
