"""Reports results: conditions, statuses and events, written only when they change, and `gangline
explain`.

Status writes wait for bindings in flight, up to a timeout. Imports everything below `loop`.
"""
