"""ResourceQuota: what is used of the limits of a namespace, and the refusal of more.

The use is computed from the stored objects and the staged writes, never from the status of a quota,
so that concurrent requests cannot exceed a limit. Rules and messages are those of Kubernetes.
"""
