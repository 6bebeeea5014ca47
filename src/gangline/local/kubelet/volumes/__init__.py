"""Volumes of a pod: the folders behind its mounts.

``projection`` writes files of API objects and replaces them atomically. ``pod_volumes`` makes and
removes the folders of a pod. ``api_access`` provides the service account token.
"""
