"""Values of the scheduler: what a cycle reads, what it returns, and the wire structs of the
watches.

`types` defines the values, `quota_scopes` the pod attributes that quotas select by, `wire` the lean
structs. This package imports no other package of the scheduler.
"""
