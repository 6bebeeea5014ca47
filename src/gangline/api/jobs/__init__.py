"""The kinds of training jobs, one module each; ``kubeflow`` has what they share.

Imports ``api.core`` and ``api.meta``.
"""
