"""Placement policies, one per file: which nodes a pod may use, and which of them is best.

`filters`, `volumes` and `inter_pod` accept or refuse nodes; `scores`, `image_locality` and
`task_topology` rank them. Imports no other package of the scheduler.
"""
