"""The scheduler cache: what is known of the cluster, updated incrementally as objects change.

`convert*` turn API objects into values, `cache` holds pods, gangs and queues, `node_table` holds
nodes as arrays. The other modules keep derived data: scores, inter-pod counts, volume
limits. Imports `plugins`. A cycle reads the cache and never changes it.
"""
