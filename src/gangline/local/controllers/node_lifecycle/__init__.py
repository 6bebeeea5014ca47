"""Node lifecycle controller: detects lost nodes by their leases, taints them, and evicts their
pods.

``plan`` (pure) decides conditions, taints and eviction times; ``controller`` watches and writes.
"""
