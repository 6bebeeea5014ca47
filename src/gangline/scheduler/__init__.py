"""The scheduler: places gangs of pods on nodes, completely or not at all.

Informers keep a cache of the cluster: small immutable values, and nodes as arrays. When something
changes, a scheduling cycle reads the cache and returns bindings, evictions, reservations, and the
reason why each other gang is pending. The cycle is a pure function of the cache and the time; the
loop around it applies and reports its result.
"""
