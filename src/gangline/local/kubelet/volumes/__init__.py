"""Volumes of a pod: the folders behind its mounts.

``projection`` writes files of API objects and replaces them atomically. ``pod_volumes`` makes and
removes the folders of a pod. ``tokens`` requests and renews the tokens of its account, and writes
the files with which the pod reaches the API server.
"""
