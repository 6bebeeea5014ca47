"""The machinery of a controller: work queue, reconcile loop, leader election, event recorder.

Imports ``kube.client``; controllers get keys from informers by callbacks only.
"""
